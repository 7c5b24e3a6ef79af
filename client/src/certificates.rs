//! Mutual TLS made on the spot: one authority, three leaves, in a private directory that goes away.
//!
//! The authority's key never leaves this process and is dropped as soon as the leaves are signed, so nobody can
//! join the three processes later. The certificates say "localhost" and are worth nothing anywhere else.

use std::fs::{OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::Error;

/// Who a leaf certificate belongs to. Every leaf may act as server and as client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// `gpu-evaluator`, server only.
    Evaluator,
    /// `trusted-runtime`, server towards clients and client of the evaluator.
    Runtime,
    /// `bifrost`, client only.
    Client,
}

impl Role {
    const ALL: [Self; 3] = [Self::Evaluator, Self::Runtime, Self::Client];

    fn name(self) -> &'static str {
        match self {
            Self::Evaluator => "evaluator",
            Self::Runtime => "runtime",
            Self::Client => "client",
        }
    }
}

/// A fresh authority's certificate and three leaves with their keys, as PEM files.
///
/// The directory has mode 0700, the files 0600; dropping this removes them.
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes an authority and the three leaves, valid for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// [`Error::Platform`] when the temporary directory or a file cannot be written, or a key cannot be made.
    pub fn issue() -> Result<Self, Error> {
        Self::issue_for(&["localhost", "127.0.0.1"])
    }

    /// The same for these names and addresses.
    ///
    /// # Errors
    /// As [`Certificates::issue`].
    pub fn issue_for(names: &[&str]) -> Result<Self, Error> {
        let dir = tempfile::Builder::new()
            .prefix("bifrost-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|error| Error::Platform(format!("no private temporary directory: {error}")))?;
        write_all(dir.path(), names)
            .map_err(|reason| Error::Platform(format!("certificates for this run: {reason}")))?;
        Ok(Self { dir })
    }

    /// The private directory; other files of the run may live in it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The authority's certificate, which every side trusts.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The leaf certificate of `role`.
    #[must_use]
    pub fn cert(&self, role: Role) -> PathBuf {
        self.dir.path().join(format!("{}.pem", role.name()))
    }

    /// The key of the leaf certificate of `role`.
    #[must_use]
    pub fn key(&self, role: Role) -> PathBuf {
        self.dir.path().join(format!("{}.key", role.name()))
    }
}

fn write_all(dir: &Path, names: &[&str]) -> Result<(), String> {
    let explain = |error: rcgen::Error| error.to_string();

    let mut authority = CertificateParams::new(Vec::new()).map_err(explain)?;
    authority.distinguished_name.push(DnType::CommonName, "bifrost authority of one run");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_key = KeyPair::generate().map_err(explain)?;
    write_private(&dir.join("ca.pem"), authority.self_signed(&authority_key).map_err(explain)?.pem().as_bytes())?;
    let issuer = Issuer::new(authority, authority_key);

    for role in Role::ALL {
        let mut leaf =
            CertificateParams::new(names.iter().map(|n| (*n).into()).collect::<Vec<String>>()).map_err(explain)?;
        leaf.distinguished_name.push(DnType::CommonName, format!("bifrost {}", role.name()));
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(explain)?;
        let cert = leaf.signed_by(&key, &issuer).map_err(explain)?;
        write_private(&dir.join(format!("{}.pem", role.name())), cert.pem().as_bytes())?;
        let pem = Zeroizing::new(key.serialize_pem());
        write_private(&dir.join(format!("{}.key", role.name())), pem.as_bytes())?;
    }
    Ok(())
}

/// Writes a new file that only its owner may read.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), String> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_removed() {
        let certificates = Certificates::issue().unwrap();
        let dir = certificates.dir().to_path_buf();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 7);
        for role in Role::ALL {
            assert_eq!(mode(&certificates.key(role)), 0o600);
            assert!(std::fs::read_to_string(certificates.cert(role)).unwrap().starts_with("-----BEGIN CERTIFICATE"));
        }
        drop(certificates);
        assert!(!dir.exists());
    }

    #[test]
    fn two_runs_share_nothing() {
        let (a, b) = (Certificates::issue().unwrap(), Certificates::issue().unwrap());
        assert_ne!(std::fs::read(a.ca()).unwrap(), std::fs::read(b.ca()).unwrap());
        assert_ne!(std::fs::read(a.key(Role::Client)).unwrap(), std::fs::read(b.key(Role::Client)).unwrap());
    }
}
