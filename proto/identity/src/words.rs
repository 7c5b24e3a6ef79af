//! What a handshake that failed means, in words.

use crate::{Pin, leaf::written, verifier::unpinned};
use rustls::{AlertDescription, CertificateError, Error, pki_types::UnixTime};
use std::{
    io,
    time::{Duration, SystemTime},
};

/// The TLS error in an error of a stream.
#[must_use]
pub fn tls(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Whether it is about who one of the two is. Other errors are those of any passer-by.
#[must_use]
pub fn about_identity(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => true,
        Error::AlertReceived(alert) => refuses(*alert),
        _ => false,
    }
}

/// What went wrong between us, whose certificate has the pin `own`, and the other end, called `peer`.
#[must_use]
pub fn explain(error: &Error, peer: &str, own: Pin) -> String {
    match error {
        Error::InvalidCertificate(why) => format!("the certificate of {peer} is refused: {}", certificate(why)),
        Error::NoCertificatesPresented => format!("{peer} shows no certificate"),
        Error::AlertReceived(alert) if refuses(*alert) => {
            format!("{peer} refuses our certificate, pin {own}: {}", said(*alert))
        }
        other => format!("TLS with {peer}: {other}"),
    }
}

fn certificate(error: &CertificateError) -> String {
    if let Some(refusal) = unpinned(error) {
        return refusal.to_string();
    }
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("it has expired on {}; here it is {}: renew it, or check the clock", at(*not_after), at(*time))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("it is not valid before {}; here it is {}: check the clock", at(*not_before), at(*time))
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("it is for another role ({error}); the roles may be swapped")
        }
        CertificateError::UnknownIssuer => "it is of another authority than the one configured".into(),
        CertificateError::BadSignature => "its signature is wrong: of another authority of the same name".into(),
        other => other.to_string(),
    }
}

fn at(time: UnixTime) -> String {
    written(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

/// Alerts about certificates (RFC 8446, section 6.2).
fn refuses(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError
            | A::CertificateRequired
    )
}

fn said(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::CertificateUnknown => "its log says why; is this pin among those that it allows?".into(),
        A::UnsupportedCertificate => "it is for another role".into(),
        A::CertificateExpired => "it counts it as expired or not yet valid; check both clocks".into(),
        A::UnknownCA => "it is of an authority that it does not know".into(),
        A::CertificateRequired => "none was shown".into(),
        other => format!("{other:?}"),
    }
}
