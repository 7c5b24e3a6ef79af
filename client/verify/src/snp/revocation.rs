//! Revocation lists, RFC 5280 section 5, as AMD's key distribution service publishes one for each root.

use super::x509::{Certificate, Signed, X509Error, malformed, seconds};
use crate::Factor;
use crate::time::show;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode as _;

/// A list whose signature is not checked yet.
#[derive(Clone, Debug)]
pub struct RevocationList {
    signed: Signed,
    inner: CertificateList,
}

/// Certificates of one chain, the root first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain<'a> {
    pub(super) ark: &'a Certificate,
    pub(super) intermediate: &'a Certificate,
    pub(super) endorsement: &'a Certificate,
}

impl RevocationList {
    /// Largest list that is read, in bytes.
    pub const LIMIT: usize = 1 << 20;

    /// # Errors
    /// [`X509Error`]
    pub fn parse(der: &[u8]) -> Result<Self, X509Error> {
        let signed = Signed::parse(der, Self::LIMIT)?;
        let inner = CertificateList::from_der(der).map_err(malformed)?;
        if inner.tbs_cert_list.signature != inner.signature_algorithm {
            return Err(X509Error::Algorithm(inner.tbs_cert_list.signature.oid.to_string()));
        }
        // A critical extension changes what a list means: partitions, deltas.
        if inner.tbs_cert_list.crl_extensions.iter().flatten().any(|extension| extension.critical) {
            return Err(X509Error::Extension("critical extension that is not known"));
        }
        Ok(Self { signed, inner })
    }

    fn issued_by(&self, issuer: &Certificate) -> bool {
        self.inner.tbs_cert_list.issuer == *issuer.inner().tbs_certificate().subject()
    }

    fn names(&self, certificate: &Certificate) -> bool {
        let serial = certificate.inner().tbs_certificate().serial_number();
        self.inner.tbs_cert_list.revoked_certificates.iter().flatten().any(|revoked| revoked.serial_number == *serial)
    }

    /// What is wrong with it for `issuer` at `now`, seconds since 1970.
    fn fault(&self, issuer: &Certificate, now: u64) -> Option<String> {
        let name = issuer.common_name();
        if !issuer.signed(&self.signed) {
            return Some(format!("the list of {name} does not carry its signature"));
        }
        let from = seconds(self.inner.tbs_cert_list.this_update);
        let Some(until) = self.inner.tbs_cert_list.next_update.map(seconds) else {
            return Some(format!("the list of {name} does not say until when it holds"));
        };
        if now < from {
            return Some(format!("the list of {name} holds from {} and it is {}: {CLOCK}", show(from), show(now)));
        }
        (now > until).then(|| format!("the list of {name} held until {} and it is {}: {CLOCK}", show(until), show(now)))
    }
}

/// Factor `snp.revocation`: every list that is given and speaks of the chain must be sound and name none of it; with
/// `required` there must be one of the root's. A list that is of no use leaves the question open, which is no better.
pub(super) fn judge(lists: &[Vec<u8>], chain: Chain<'_>, now: u64, required: bool) -> Factor {
    let expected =
        if required { "a current list of the root, naming none of the chain" } else { "no list that names the chain" };
    let mut seen = false;
    for der in lists {
        let list = match RevocationList::parse(der) {
            Ok(list) => list,
            Err(error) => return Factor::skipped(CODE, expected, format!("revocation list: {error}")),
        };
        let (issuer, subject) = if list.issued_by(chain.ark) {
            seen = true;
            (chain.ark, chain.intermediate)
        } else if list.issued_by(chain.intermediate) {
            (chain.intermediate, chain.endorsement)
        } else {
            continue;
        };
        if let Some(fault) = list.fault(issuer, now) {
            return Factor::skipped(CODE, expected, fault);
        }
        if list.names(subject) {
            return Factor::judged(CODE, false, expected, format!("{} is revoked", subject.common_name()));
        }
    }
    match (seen, required) {
        (true, _) => Factor::judged(CODE, true, expected, "not revoked"),
        (false, true) => Factor::skipped(CODE, expected, format!("no list of {}", chain.ark.common_name())),
        (false, false) => {
            Factor::noted(CODE, "not looked at: no list of the root at hand, and the policy asks for none")
        }
    }
}

const CODE: &str = "snp.revocation";
const CLOCK: &str = "check the clock of this machine, then fetch the list anew";
