//! What a certificate says, read for people and for the checks that TLS makes too late or not at all.

use crate::{Error, Pin};
use rustls::pki_types::CertificateDer;
use std::{fmt, net::IpAddr, time::SystemTime};
use x509_cert::{
    Certificate,
    der::{DateTime, Decode, asn1::ObjectIdentifier},
    ext::pkix::{BasicConstraints, ExtendedKeyUsage, SubjectAltName, name::GeneralName},
};

/// What a certificate may be used for (RFC 5280, section 4.2.1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// `serverAuth`: an evaluator's.
    Server,
    /// `clientAuth`: a runtime's.
    Client,
    /// Anything else.
    Other(ObjectIdentifier),
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("serverAuth"),
            Self::Client => f.write_str("clientAuth"),
            Self::Other(id) => write!(f, "{id}"),
        }
    }
}

impl From<ObjectIdentifier> for Usage {
    fn from(id: ObjectIdentifier) -> Self {
        match id {
            SERVER_AUTH => Self::Server,
            CLIENT_AUTH => Self::Client,
            other => Self::Other(other),
        }
    }
}

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// As RFC 4514 writes it.
    pub subject: String,
    /// DNS names and addresses; names of other kinds with their kind before them.
    pub names: Vec<String>,
    /// `None` if it does not say: any.
    pub usages: Option<Vec<Usage>>,
    /// Whether it may sign others.
    pub authority: bool,
    /// From when it counts.
    pub not_before: SystemTime,
    /// Until when.
    pub not_after: SystemTime,
    /// Of its key.
    pub pin: Pin,
}

impl Leaf {
    /// Reads a certificate.
    ///
    /// # Errors
    /// [`Error::Certificate`] for what is none.
    pub fn parse(der: &CertificateDer<'_>) -> Result<Self, Error> {
        let malformed = |e: x509_cert::der::Error| Error::Certificate(format!("malformed certificate: {e}"));
        let certificate = Certificate::from_der(der).map_err(malformed)?;
        let tbs = certificate.tbs_certificate();
        let names = tbs.get_extension::<SubjectAltName>().map_err(malformed)?;
        let usages = tbs.get_extension::<ExtendedKeyUsage>().map_err(malformed)?;
        let basic = tbs.get_extension::<BasicConstraints>().map_err(malformed)?;
        Ok(Self {
            subject: tbs.subject().to_string(),
            names: names.map_or_else(Vec::new, |(_, names)| names.0.iter().map(name).collect()),
            usages: usages.map(|(_, usages)| usages.0.into_iter().map(Usage::from).collect()),
            authority: basic.is_some_and(|(_, basic)| basic.ca),
            not_before: tbs.validity().not_before.to_system_time(),
            not_after: tbs.validity().not_after.to_system_time(),
            pin: Pin::of(der)?,
        })
    }

    /// Whether it counts at `now`.
    ///
    /// # Errors
    /// [`Error::Certificate`] with both times; a clock that is wrong looks like this, too.
    pub fn check_time(&self, now: SystemTime) -> Result<(), Error> {
        let what = if now < self.not_before {
            format!("is not valid before {}", written(self.not_before))
        } else if now > self.not_after {
            format!("has expired on {}", written(self.not_after))
        } else {
            return Ok(());
        };
        let subject = &self.subject;
        Err(Error::Certificate(format!(
            "the certificate of {subject} {what}; here it is {}: renew it, or check the clock",
            written(now)
        )))
    }

    /// Whether it may be used for `usage`.
    ///
    /// # Errors
    /// [`Error::Certificate`] with what it is for.
    pub fn check_usage(&self, usage: Usage) -> Result<(), Error> {
        match &self.usages {
            Some(usages) if !usages.contains(&usage) => {
                let found: Vec<_> = usages.iter().map(ToString::to_string).collect();
                let role = if usage == Usage::Server { "an evaluator" } else { "a runtime" };
                Err(Error::Certificate(format!(
                    "the certificate of {} is for {}, expected {usage}, as {role} has it",
                    self.subject,
                    found.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }
}

/// A time as RFC 3339 writes it, in UTC; "?" beyond its years.
#[must_use]
pub fn written(time: SystemTime) -> String {
    DateTime::from_system_time(time).map_or_else(|_| "?".into(), |time| time.to_string())
}

fn name(name: &GeneralName) -> String {
    match name {
        GeneralName::DnsName(name) => name.to_string(),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.map_or_else(|_| format!("address of {} bytes", bytes.len()), |a| a.to_string())
        }
        GeneralName::Rfc822Name(name) => format!("email:{name}"),
        GeneralName::UniformResourceIdentifier(name) => format!("uri:{name}"),
        GeneralName::DirectoryName(name) => format!("directory:{name}"),
        _ => "a name of another kind".into(),
    }
}

/// id-kp-serverAuth and id-kp-clientAuth (RFC 5280, section 4.2.1.12).
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, DAY, noon};

    #[test]
    fn everything_is_read() {
        let made = Authority::new().leaf(&[Usage::Client], noon(), noon() + DAY, &["rt.example", "10.0.0.7", "::1"]);
        let leaf = Leaf::parse(&made.der).unwrap();
        assert_eq!(leaf.names, ["rt.example", "10.0.0.7", "::1"]);
        assert_eq!(leaf.usages, Some(vec![Usage::Client]));
        assert_eq!((leaf.not_before, leaf.not_after, leaf.authority), (noon(), noon() + DAY, false));
        assert_eq!(leaf.subject, "CN=leaf");
        assert!(Leaf::parse(&Authority::new().der).unwrap().authority);
    }

    #[test]
    fn times_and_roles_are_judged_in_words() {
        let made = Authority::new().leaf(&[Usage::Client], noon(), noon() + DAY, &["a"]);
        let leaf = Leaf::parse(&made.der).unwrap();
        assert_eq!(leaf.check_time(noon() + DAY), Ok(()));
        for (at, says) in [(noon() - DAY, "is not valid before 2026-"), (noon() + 2 * DAY, "has expired on 2026-")] {
            let error = leaf.check_time(at).unwrap_err().to_string();
            assert!(error.contains(says) && error.ends_with("check the clock"), "{error}");
        }
        assert_eq!(leaf.check_usage(Usage::Client), Ok(()));
        let error = leaf.check_usage(Usage::Server).unwrap_err().to_string();
        assert!(error.contains("is for clientAuth, expected serverAuth"), "{error}");
        let any = Leaf { usages: None, ..leaf };
        assert_eq!(any.check_usage(Usage::Server), Ok(()));
    }
}
