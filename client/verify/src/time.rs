//! Times as Intel's collateral writes them.

use x509_cert::der::DateTime;

/// Seconds since 1970 of an RFC 3339 time in UTC, such as `2026-10-08T00:09:46Z`; `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<u64> {
    text.parse::<DateTime>().ok().map(|time| time.unix_duration().as_secs())
}

/// The same, back.
pub(crate) fn show(seconds: u64) -> String {
    DateTime::from_unix_duration(std::time::Duration::from_secs(seconds))
        .map_or_else(|_| format!("second {seconds} of 1970"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        assert_eq!(parse("1970-01-02T00:00:01Z"), Some(86_401));
        assert_eq!(show(86_401), "1970-01-02T00:00:01Z");
        assert_eq!(parse("2026-10-08T00:09:46Z").map(show).as_deref(), Some("2026-10-08T00:09:46Z"));
        for bad in ["", "2026-10-08", "2026-10-08T00:09:46", "2026-13-08T00:09:46Z", "2026-10-08T00:09:46+01:00"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
