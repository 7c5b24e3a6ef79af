//! The authority: a key that signs leaves, and its certificate.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use identity::{Leaf, Pin};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use time::OffsetDateTime;

use super::{SLACK, files, paths};
use crate::Error;

/// What was made.
pub(super) struct Made {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) leaf: Leaf,
}

/// An authority that may sign.
pub(super) struct Authority {
    pub(super) leaf: Leaf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one in `dir`, which must not have one.
    pub(super) fn make(dir: &Path, life: Duration, now: SystemTime) -> Result<Made, Error> {
        let (cert, key) = paths(dir);
        for path in [&cert, &key] {
            if path.exists() {
                return Err(Error::file(path, "there is an authority already; a new one needs a directory of its own"));
            }
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| Error::file(dir, e))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "bifrost evaluator link authority");
        // It signs leaves and no further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (offset(now - SLACK)?, offset(now + life)?);
        let broken = |e: rcgen::Error| Error::Platform(format!("new authority: {e}"));
        let pair = KeyPair::generate().map_err(broken)?;
        let made = params.self_signed(&pair).map_err(broken)?;
        files::write(&key, zeroize::Zeroizing::new(pair.serialize_pem()).as_bytes())?;
        files::write(&cert, made.pem().as_bytes())?;
        let leaf = Leaf::parse(made.der()).map_err(|e| Error::file(&cert, e))?;
        Ok(Made { cert, key, leaf })
    }

    /// Reads the one in `dir`, which must count at `now`.
    pub(super) fn read(dir: &Path, now: SystemTime) -> Result<Self, Error> {
        let (cert, key) = paths(dir);
        let pem = files::text(&cert)?;
        let der = CertificateDer::from_pem_slice(pem.as_bytes());
        let der = der.map_err(|e| Error::file(&cert, format!("not a certificate: {e}")))?;
        let leaf = Leaf::parse(&der).map_err(|e| Error::file(&cert, e))?;
        if !leaf.authority {
            return Err(Error::file(&cert, "not an authority, expected what `bifrost pki init` makes"));
        }
        leaf.check_time(now).map_err(|e| Error::file(&cert, e))?;
        let pair = KeyPair::from_pem(&files::key(&key)?);
        let pair = pair.map_err(|e| Error::file(&key, format!("not a private key: {e}")))?;
        if Pin::of_key(&pair.subject_public_key_info()) != leaf.pin {
            return Err(Error::file(&key, format!("not the key of {}", cert.display())));
        }
        let issuer = Issuer::from_ca_cert_der(&der, pair).map_err(|e| Error::file(&cert, e))?;
        Ok(Self { leaf, issuer })
    }

    pub(super) fn sign(&self, params: &CertificateParams, key: &impl PublicKeyData) -> Result<Certificate, Error> {
        params.signed_by(key, &self.issuer).map_err(|e| Error::Platform(format!("new certificate: {e}")))
    }
}

/// As certificates have it; years beyond 9999 are refused.
pub(super) fn offset(at: SystemTime) -> Result<OffsetDateTime, Error> {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|t| i64::try_from(t.as_secs()).ok());
    let time = seconds.and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    time.ok_or_else(|| Error::Platform("a time outside the years 1970 to 9999; check the clock".into()))
}
