//! The way to a runtime that a command line names.

use std::path::PathBuf;
use std::sync::Arc;

use crate::Error;
use crate::attested::{Attested, Endpoint, SCHEME, Terms};
use crate::cli::AttestedArgs;
use crate::inference::Address;
use crate::key::TenantKey;
use crate::trust::{Clock, Trust};

/// The way to a runtime.
pub(crate) enum Way<W> {
    /// None was named: daemons of this machine.
    Here,
    /// By mutual TLS.
    MutualTls(Address),
    /// By attestation.
    Attested(Arc<Attested<W>>),
}

/// The files of mutual TLS.
pub(crate) struct MutualTls<'a> {
    pub(crate) ca: Option<&'a PathBuf>,
    pub(crate) cert: Option<&'a PathBuf>,
    pub(crate) key: Option<&'a PathBuf>,
}

impl<W: Trust> Way<W> {
    /// The way to `url`, which the argument `flag` gave.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments that are missing or belong to the other kind of address, [`Error::File`].
    pub(crate) fn of(
        flag: &str,
        url: Option<&str>,
        files: &MutualTls<'_>,
        args: &AttestedArgs,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let usage = |text: String| Err(Error::Usage(text));
        let attested = url.filter(|url| url.starts_with(SCHEME));
        if attested.is_none() && args.any() {
            return usage(format!(
                "--attestation-policy, --tenant-key and what belongs to them need {flag} {SCHEME}HOST:PORT"
            ));
        }
        let Some(url) = url else { return Ok(Self::Here) };
        let MutualTls { ca, cert, key } = *files;
        if attested.is_none() {
            let need = |file: Option<&PathBuf>, name: &str| {
                let reason = "runtimes speak mutual TLS or, at attested:// addresses, attested TLS only";
                file.cloned().ok_or_else(|| Error::Usage(format!("{flag} needs {name} FILE: {reason}")))
            };
            let (ca, cert, key) = (need(ca, "--ca")?, need(cert, "--cert")?, need(key, "--key")?);
            return Ok(Self::MutualTls(Address { url: url.to_owned(), ca, cert, key }));
        }
        if ca.or(cert).or(key).is_some() {
            return usage(format!("--ca, --cert and --key are for https:// addresses, {flag} is {url}"));
        }
        let endpoint = Endpoint::parse(url)?;
        let (Some(policy), Some(tenant_key)) = (&args.attestation_policy, &args.tenant_key) else {
            return usage(format!("{flag} {SCHEME} needs --attestation-policy FILE and --tenant-key FILE"));
        };
        let terms = Terms::load(policy, &args.trust, clock)?;
        let key = TenantKey::load(tenant_key, clock.now())?;
        Ok(Self::Attested(Attested::new(endpoint, terms, Some(key))))
    }
}

#[cfg(test)]
mod tests {
    use attest::Hardware;

    use super::*;
    use crate::cli::TrustArgs;

    fn way(url: Option<&str>, pem: bool, args: &AttestedArgs) -> Result<Way<Hardware>, Error> {
        let pem = pem.then(|| PathBuf::from("a.pem"));
        let files = MutualTls { ca: pem.as_ref(), cert: pem.as_ref(), key: pem.as_ref() };
        Way::of("--runtime", url, &files, args, &Clock::new(|| 7))
    }

    #[test]
    fn each_kind_of_address_has_its_own_arguments() {
        let none = AttestedArgs::default();
        assert!(matches!(way(None, false, &none), Ok(Way::Here)));
        assert!(matches!(way(Some("https://h:1"), true, &none), Ok(Way::MutualTls(_))));
        let policy = AttestedArgs { attestation_policy: Some("p.toml".into()), ..none.clone() };
        let rollback =
            AttestedArgs { trust: TrustArgs { accept_rollback: true, ..none.trust.clone() }, ..none.clone() };
        for (url, pem, args, says) in [
            (Some("https://h:1"), false, &none, "--runtime needs --ca FILE"),
            (Some("https://h:1"), true, &policy, "need --runtime attested://HOST:PORT"),
            (None, false, &rollback, "need --runtime attested://HOST:PORT"),
            (Some("attested://h:1"), true, &policy, "are for https:// addresses"),
            (Some("attested://h:1"), false, &none, "needs --attestation-policy FILE and --tenant-key FILE"),
            (Some("attested://h:1"), false, &policy, "needs --attestation-policy FILE and --tenant-key FILE"),
            (Some("attested://h"), false, &none, "expected attested://HOST:PORT"),
        ] {
            match way(url, pem, args) {
                Err(Error::Usage(text)) => assert!(text.contains(says), "{text}"),
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("{url:?} was taken, not {says}"),
            }
        }
    }
}
