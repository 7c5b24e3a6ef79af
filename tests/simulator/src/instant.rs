//! Seconds since 1970 as certificates and collateral write them.

use crate::SimulatorError;
use time::OffsetDateTime;

/// The same instant as a date.
///
/// # Errors
/// [`SimulatorError::Time`] from the year 10000 on.
pub(crate) fn date(seconds: u64) -> Result<OffsetDateTime, SimulatorError> {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(SimulatorError::Time { found: seconds })
}

/// `2026-12-01T00:00:00Z`, RFC 3339 section 5.6.
///
/// # Errors
/// As [`date`].
pub(crate) fn text(seconds: u64) -> Result<String, SimulatorError> {
    let date = date(seconds)?;
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (date.hour(), date.minute(), date.second());
    Ok(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

/// Seconds of a day.
pub(crate) const DAY: u64 = 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_read_as_rfc_3339() {
        assert_eq!(text(0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(text(951_782_400 + 3_723).unwrap(), "2000-02-29T01:02:03Z");
        assert_eq!(text(253_402_300_799).unwrap(), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn the_year_10000_is_an_error() {
        assert!(matches!(text(253_402_300_800), Err(SimulatorError::Time { found: 253_402_300_800 })));
        assert!(text(u64::MAX).is_err());
    }
}
