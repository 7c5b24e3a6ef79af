//! Certificates for tests.

use crate::{Files, Usage, files::Named};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    pki_types::{CertificateDer, UnixTime},
    time_provider::TimeProvider,
};
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, SystemTime},
};

/// 1 September 2026, 12:00 UTC.
pub(crate) fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_788_264_000)
}
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// A clock that stands.
#[derive(Debug)]
pub(crate) struct Standing(pub(crate) SystemTime);

impl TimeProvider for Standing {
    fn current_time(&self) -> Option<UnixTime> {
        self.0.duration_since(SystemTime::UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}

pub(crate) struct Authority {
    pub(crate) pem: String,
    pub(crate) der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) cert: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

fn offset(at: SystemTime) -> time::OffsetDateTime {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    time::OffsetDateTime::from_unix_timestamp(seconds.try_into().unwrap()).unwrap()
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::until(noon() + 100 * DAY)
    }

    pub(crate) fn until(end: SystemTime) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (offset(noon() - 100 * DAY), offset(end));
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        Self { pem: made.pem(), der: made.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub(crate) fn leaf(&self, usages: &[Usage], from: SystemTime, until: SystemTime, names: &[&str]) -> Made {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let mut subject = rcgen::DistinguishedName::new();
        subject.push(DnType::CommonName, "leaf");
        params.distinguished_name = subject;
        params.extended_key_usages = usages
            .iter()
            .map(|usage| match usage {
                Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
                _ => ExtendedKeyUsagePurpose::ClientAuth,
            })
            .collect();
        (params.not_before, params.not_after) = (offset(from), offset(until));
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        Made { cert: made.pem(), key: key.serialize_pem(), der: made.der().clone() }
    }

    /// A leaf for `localhost` that counts at [`noon`].
    pub(crate) fn good(&self, usage: Usage) -> Made {
        self.leaf(&[usage], noon() - DAY, noon() + DAY, &["localhost"])
    }
}

/// Writes the three files of one end into `dir`.
pub(crate) fn files(dir: &Path, end: &str, own: &Made, ca: &str) -> Files {
    let named = |setting, name: &str, text: &str| {
        let path = dir.join(format!("{end}-{name}"));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Named { setting, path }
    };
    Files {
        cert: named("cert", "cert.pem", &own.cert),
        key: named("key", "key.pem", &own.key),
        ca: named("ca", "ca.pem", ca),
        pins: None,
    }
}
