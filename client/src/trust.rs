//! The world that a program lives in, and its clock.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A domain of evidence together with the tenant keys that belong to it.
///
/// There is one implementation in this crate, for [`attest::Hardware`]. A simulated world has its own in its own crate and
/// its own binary, which calls [`crate::main`] with it.
pub trait Trust: attest_verify::Anchor {
    /// Whether the keys of this world are those marked as test keys. The others are refused.
    const TEST_KEYS: bool;

    /// Name of the world in headers and JSON: the banner, and `hardware` without one.
    const LABEL: &'static str = match Self::BANNER {
        Some(banner) => banner,
        None => Self::MODE,
    };
}

impl Trust for attest::Hardware {
    const TEST_KEYS: bool = false;
}

/// Says what time it is. Handed in from the process edge; nothing else here asks the system.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// A clock of one's own, in seconds since 1970.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The system's. A time before 1970 is 1970.
    #[must_use]
    pub fn system() -> Self {
        Self::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.0)()
    }
}

/// An RFC 3339 time of seconds since 1970.
#[must_use]
pub fn time_of(seconds: u64) -> String {
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    let time = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| format!("second {seconds} of 1970"))
}

/// Seconds since 1970 of an RFC 3339 time, for clap.
///
/// # Errors
/// What was expected.
pub fn seconds_of(text: &str) -> Result<u64, String> {
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    let time = OffsetDateTime::parse(text, &Rfc3339).ok();
    time.and_then(|time| u64::try_from(time.unix_timestamp()).ok())
        .ok_or_else(|| "expected an RFC 3339 time from 1970 on, such as 2026-10-08T00:09:46Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        assert_eq!(time_of(86_401), "1970-01-02T00:00:01Z");
        assert_eq!(seconds_of("1970-01-02T01:00:01+01:00"), Ok(86_401));
        for bad in ["", "2026-10-08", "1969-12-31T00:00:00Z", "yesterday"] {
            assert!(seconds_of(bad).unwrap_err().contains("RFC 3339"), "{bad}");
        }
        assert!(time_of(u64::MAX).contains("second"));
    }

    #[test]
    fn hardware_has_no_banner_and_no_test_keys() {
        use attest::{Domain, Hardware};
        assert_eq!((Hardware::BANNER, <Hardware as Trust>::LABEL), (None, "hardware"));
        const { assert!(!<Hardware as Trust>::TEST_KEYS) };
    }
}
