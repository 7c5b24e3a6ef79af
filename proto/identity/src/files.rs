//! The files of one end: its certificate chain, its key, the authority of the other end and, if wanted, pins.

use crate::{Error, Leaf, Pin, Pins, Usage, crypto, leaf::written};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use std::{
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    sync::Arc,
    time::SystemTime,
};
use zeroize::Zeroizing;

/// A file and the setting that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The setting, for messages.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// PEM files of one end, and one of pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The own certificate, and those between it and its authority, if any.
    pub cert: Named,
    /// Its key.
    pub key: Named,
    /// The authority that signs the certificates of the other end.
    pub ca: Named,
    /// Keys of the other end that are let in; those that are given elsewhere count if there is no such file.
    pub pins: Option<Named>,
}

/// What the files hold, checked.
#[derive(Clone, Debug)]
pub struct Material {
    pub(crate) own: Arc<CertifiedKey>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) pins: Option<Pins>,
    /// The own certificate.
    pub leaf: Leaf,
}

/// Which state of a file was read: device and number, size in bytes, and time of change in nanoseconds.
pub type Stamp = Option<(u64, u64, u64, i128)>;

impl Named {
    /// The state of the file now; `None` if there is none.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let m = std::fs::metadata(&self.path).ok()?;
        Some((m.dev(), m.ino(), m.len(), i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec())))
    }

    fn error(&self, reason: impl std::fmt::Display) -> Error {
        Error::File { setting: self.setting, path: self.path.clone(), reason: reason.to_string() }
    }

    fn read(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let file = std::fs::File::open(&self.path).map_err(|e| self.error(e))?;
        let mut bytes = Zeroizing::new(Vec::new());
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| self.error(e))?;
        if bytes.len() as u64 > LARGEST {
            return Err(self.error(format!("larger than {LARGEST} bytes, expected PEM")));
        }
        Ok(bytes)
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let bytes = self.read()?;
        let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
        let found = found.map_err(|e| self.error(format!("malformed PEM, half-written perhaps: {e}")))?;
        if found.is_empty() {
            return Err(self.error("no PEM section \"CERTIFICATE\" in it"));
        }
        Ok(found)
    }

    /// The key, if the file is not everybody's.
    fn key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        let mode = std::fs::metadata(&self.path).map_err(|e| self.error(e))?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(self.error(format!("mode {:o} lets everybody at the key, expected 600", mode & 0o777)));
        }
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|e| match e {
            rustls::pki_types::pem::Error::NoItemsFound => self.error("no PEM section \"PRIVATE KEY\" in it"),
            e => self.error(format!("malformed PEM, half-written perhaps: {e}")),
        })
    }
}

impl Named {
    /// Pins, one or several in a line, with comments behind `#`. A file without any lets nobody in, and is refused.
    fn pins(&self) -> Result<Pins, Error> {
        let bytes = self.read()?;
        let text = std::str::from_utf8(&bytes).map_err(|e| self.error(format!("no UTF-8: {e}")))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let pins = Pins::parse(self.setting, &lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(","))
            .map_err(|e| self.error(e))?;
        if pins.is_empty() { Err(self.error("no pin in it, expected one at least")) } else { Ok(pins) }
    }
}

impl Files {
    /// The states of all of them.
    #[must_use]
    pub fn stamps(&self) -> [Stamp; 4] {
        [Some(&self.cert), Some(&self.key), Some(&self.ca), self.pins.as_ref()].map(|file| file.and_then(Named::stamp))
    }

    /// Reads the files and checks that they fit together and count at `now`.
    ///
    /// # Errors
    /// [`Error::File`] with the first that cannot be used: unreadable, half-written, a key that everybody may read or
    /// that belongs to another certificate, expired, not yet valid, of the wrong role.
    pub fn read(&self, usage: Usage, now: SystemTime) -> Result<Material, Error> {
        let chain = self.cert.certificates()?;
        let leaf = chain.first().map(Leaf::parse).transpose().map_err(|e| self.cert.error(e))?;
        let leaf = leaf.ok_or_else(|| self.cert.error("no certificate"))?;
        leaf.check_time(now).and_then(|()| leaf.check_usage(usage)).map_err(|e| self.cert.error(e))?;
        let own = CertifiedKey::from_der(chain, self.key.key()?, &crypto()).map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => {
                self.key.error(format!("not the key of the certificate in {}", self.cert.path.display()))
            }
            e => self.key.error(e),
        })?;
        let pins = self.pins.as_ref().map(Named::pins).transpose()?;
        Ok(Material { own: Arc::new(own), roots: Arc::new(self.roots(now)?), pins, leaf })
    }

    fn roots(&self, now: SystemTime) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let mut refusal = None;
        for certificate in self.ca.certificates()? {
            let authority = Leaf::parse(&certificate).map_err(|e| self.ca.error(e))?;
            // While one authority replaces another, the old one may have expired.
            match authority.check_time(now) {
                Ok(()) => roots.add(certificate).map_err(|e| self.ca.error(e))?,
                Err(e) => refusal = Some(e),
            }
        }
        match refusal {
            Some(e) if roots.is_empty() => Err(self.ca.error(e)),
            Some(e) => {
                tracing::warn!("{} {}: {e}", self.ca.setting, self.ca.path.display());
                Ok(roots)
            }
            None => Ok(roots),
        }
    }
}

impl Material {
    /// The own certificate in one line, for the log.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{}, pin {}, valid until {}", self.leaf.subject, self.leaf.pin, written(self.leaf.not_after))
    }
}

/// Whether two authorities, as PEM, have no key in common: whoever may sign clients must not make evaluators by it, nor
/// the other way round.
///
/// # Errors
/// [`Error::Certificate`] with the pin of the key that is in both, or for what is no PEM.
pub fn apart(evaluator_ca: &[u8], client_ca: &[u8]) -> Result<(), Error> {
    let pins = |setting: &str, pem: &[u8]| {
        let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let found = found.map_err(|e| Error::Certificate(format!("{setting}: malformed PEM: {e}")))?;
        found.iter().map(Pin::of).collect::<Result<Vec<_>, _>>()
    };
    let (evaluators, clients) = (pins("evaluator.ca", evaluator_ca)?, pins("tls.client_ca", client_ca)?);
    match evaluators.iter().find(|pin| clients.contains(pin)) {
        None => Ok(()),
        Some(pin) => Err(Error::Certificate(format!(
            "one authority (pin {pin}) signs both evaluators (evaluator.ca) and clients (tls.client_ca), expected two: make one for evaluators with `bifrost pki init`"
        ))),
    }
}

/// No chain of certificates comes near it.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, DAY, files, noon};

    #[test]
    fn good_files_are_read() {
        let (dir, ca) = (tempfile::tempdir().unwrap(), Authority::new());
        let own = ca.good(Usage::Client);
        let material = files(dir.path(), "a", &own, &ca.pem).read(Usage::Client, noon()).unwrap();
        assert_eq!(material.leaf.pin, Pin::of(&own.der).unwrap());
        assert!(material.summary().contains("valid until 2026-"), "{}", material.summary());
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let (dir, ca) = (tempfile::tempdir().unwrap(), Authority::new());
        let own = ca.good(Usage::Client);
        let good = files(dir.path(), "a", &own, &ca.pem);
        let refused = |files: &Files, usage, says: &str| {
            let error = files.read(usage, noon()).expect_err(says).to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{says:?} is not in {error:?}");
        };
        let absent = Named { setting: "cert", path: dir.path().join("absent.pem") };
        refused(&Files { cert: absent, ..good.clone() }, Usage::Client, "absent.pem: No such file");
        refused(&good, Usage::Server, "is for clientAuth, expected serverAuth");
        refused(&Files { key: good.ca.clone(), ..good.clone() }, Usage::Client, "no PEM section \"PRIVATE KEY\"");
        refused(&Files { cert: good.key.clone(), ..good.clone() }, Usage::Client, "no PEM section \"CERTIFICATE\"");
        for (from, until, says) in
            [(noon() - 2 * DAY, noon() - DAY, "has expired"), (noon() + DAY, noon() + 2 * DAY, "is not valid before")]
        {
            let own = ca.leaf(&[Usage::Client], from, until, &["a"]);
            refused(&files(dir.path(), "b", &own, &ca.pem), Usage::Client, says);
        }
        let other = ca.good(Usage::Client);
        let mixed = crate::testing::Made { cert: own.cert.clone(), ..other };
        refused(&files(dir.path(), "c", &mixed, &ca.pem), Usage::Client, "not the key of the certificate in");
        let half = own.key[..own.key.len() / 2].to_owned();
        refused(
            &files(dir.path(), "d", &crate::testing::Made { key: half, ..own.clone() }, &ca.pem),
            Usage::Client,
            "half-written",
        );
        let open = files(dir.path(), "e", &own, &ca.pem);
        std::fs::set_permissions(&open.key.path, std::fs::Permissions::from_mode(0o644)).unwrap();
        refused(&open, Usage::Client, "mode 644 lets everybody at the key");
        std::fs::write(&open.cert.path, vec![b'-'; 2 << 20]).unwrap();
        refused(&open, Usage::Client, "larger than");
    }

    #[test]
    fn pins_of_a_file_are_read_and_a_file_without_any_is_refused() {
        let (dir, ca) = (tempfile::tempdir().unwrap(), Authority::new());
        let path = dir.path().join("pins");
        let own = ca.good(Usage::Client);
        let named = Some(Named { setting: "pins_file", path: path.clone() });
        let with = Files { pins: named, ..files(dir.path(), "a", &own, &ca.pem) };
        let (a, b) = ("a1".repeat(32), "b2".repeat(32));
        std::fs::write(&path, format!("# old\n{a}, # until May\n\n{b}\n")).unwrap();
        let pins = with.read(Usage::Client, noon()).unwrap().pins.unwrap();
        assert_eq!(pins, vec![a.parse().unwrap(), b.parse().unwrap()].into());
        for (text, says) in [("", "no pin in it"), ("# none\n", "no pin in it"), (&a[..63], "64 hexadecimal digits")] {
            std::fs::write(&path, text).unwrap();
            let error = with.read(Usage::Client, noon()).unwrap_err().to_string();
            assert!(error.starts_with("pins_file ") && error.contains(says), "{says:?} is not in {error:?}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = with.read(Usage::Client, noon()).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn an_authority_may_expire_beside_its_successor_and_not_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (Authority::until(noon() - DAY), Authority::new());
        let own = new.good(Usage::Server);
        let alone = files(dir.path(), "a", &own, &old.pem).read(Usage::Server, noon()).unwrap_err().to_string();
        assert!(alone.starts_with("ca ") && alone.contains("has expired"), "{alone}");
        let both = files(dir.path(), "b", &own, &format!("{}{}", old.pem, new.pem));
        assert_eq!(both.read(Usage::Server, noon()).unwrap().roots.len(), 1);
    }

    #[test]
    fn one_authority_for_both_sides_is_noticed() {
        let (a, b, c) = (Authority::new(), Authority::new(), Authority::new());
        assert_eq!(apart(a.pem.as_bytes(), b.pem.as_bytes()), Ok(()));
        let bundle = format!("{}{}", c.pem, a.pem);
        for (evaluators, clients) in [(&a.pem, &a.pem), (&a.pem, &bundle), (&bundle, &a.pem)] {
            let error = apart(evaluators.as_bytes(), clients.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&Pin::of(&a.der).unwrap().to_string()), "{error}");
        }
    }

    #[test]
    fn a_stamp_changes_with_the_file() {
        let (dir, ca) = (tempfile::tempdir().unwrap(), Authority::new());
        let files = files(dir.path(), "a", &ca.good(Usage::Client), &ca.pem);
        let before = files.stamps();
        assert_eq!(before, files.stamps());
        std::fs::write(&files.key.path, "x").unwrap();
        assert_ne!(before, files.stamps());
        std::fs::remove_file(&files.ca.path).unwrap();
        assert_eq!(files.stamps()[2], None);
    }
}
