//! What one text of the engine means, as a named factor.

/// Why a quote could not be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tdx) struct Fault {
    /// The factor that did not hold.
    pub(in crate::tdx) code: &'static str,
    /// Whose matter it is.
    pub(in crate::tdx) kind: Kind,
    /// A sentence for people.
    pub(in crate::tdx) text: String,
}

/// Whose matter a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tdx) enum Kind {
    /// The evidence is not what it should be.
    Evidence,
    /// The clock of this machine and the validity of the collateral do not agree: nothing could be checked.
    Clock,
    /// The collateral is not usable: nothing could be checked.
    Collateral,
}

/// A part of the engine's text, the factor, whose matter, and a sentence of ours in place of the engine's if that needs
/// one. The first that matches counts.
type Row = (&'static str, &'static str, Kind, Option<&'static str>);

const TABLE: &[Row] = &[
    ("issue date is in the future", "collateral.validity", Kind::Clock, None),
    ("TCBInfo expired", "collateral.validity", Kind::Clock, None),
    ("QE Identity expired", "collateral.validity", Kind::Clock, None),
    ("CertExpired", "collateral.validity", Kind::Clock, None),
    ("CertNotValidYet", "collateral.validity", Kind::Clock, None),
    ("CrlExpired", "collateral.validity", Kind::Clock, None),
    ("CertRevoked", "pck.revocation", Kind::Evidence, Some("a certificate of the chain is revoked")),
    (
        "UnknownRevocationStatus",
        "pck.revocation",
        Kind::Collateral,
        Some("no revocation list of the collateral speaks of a certificate of the chain"),
    ),
    ("CRL", "pck.revocation", Kind::Collateral, None),
    ("Crl", "pck.revocation", Kind::Collateral, None),
    ("Failed to load root ca", "pck.chain", Kind::Collateral, None),
    ("Failed to decode quote", "quote.parse", Kind::Evidence, None),
    ("Unsupported DCAP quote version", "quote.parse", Kind::Evidence, None),
    ("Unsupported DCAP attestation key type", "quote.parse", Kind::Evidence, None),
    ("Unsupported TEE type", "quote.parse", Kind::Evidence, None),
    ("TEE quote must have version", "quote.parse", Kind::Evidence, None),
    ("Unknown QE vendor ID", "tcb.qe", Kind::Evidence, Some("the quoting enclave's vendor is not Intel")),
    (
        "Failed to verify certificate chain",
        "pck.chain",
        Kind::Evidence,
        Some("a certificate chain of the quote or of its collateral does not lead to the trusted root"),
    ),
    ("Too many intermediate certificates", "pck.chain", Kind::Evidence, None),
    ("PCK cert", "pck.chain", Kind::Evidence, None),
    ("Certificate chain is too short in quote", "pck.chain", Kind::Evidence, None),
    ("Certificate chain is too short", "collateral.signature", Kind::Collateral, None),
    ("signer must be issued directly", "collateral.signature", Kind::Collateral, None),
    ("Signature is invalid for tcb_info", "collateral.signature", Kind::Collateral, None),
    ("Signature is invalid for qe_identity", "collateral.signature", Kind::Collateral, None),
    ("Signature is invalid for qe_report", "quote.signature", Kind::Evidence, None),
    ("QE report hash mismatch", "quote.signature", Kind::Evidence, None),
    ("Invalid QE auth data length", "quote.signature", Kind::Evidence, None),
    (
        "ISV enclave report signature",
        "quote.signature",
        Kind::Evidence,
        Some("the signature over the TD report is wrong"),
    ),
    ("Fmspc mismatch", "collateral.match", Kind::Collateral, None),
    ("non-TDX TCB info", "collateral.match", Kind::Collateral, None),
    ("Unsupported QE Identity", "collateral.match", Kind::Collateral, None),
    (
        "No matching TCB level",
        "tcb.platform",
        Kind::Evidence,
        Some(
            "the platform's security versions are below every level that Intel lists: firmware or microcode is older than anything Intel still rates",
        ),
    ),
    ("TCB status is invalid: Revoked", "tcb.platform", Kind::Evidence, Some("Intel revoked the platform's TCB level")),
    ("TDX module", "tcb.module", Kind::Evidence, None),
    ("tdxModule", "tcb.module", Kind::Evidence, None),
    ("Debug mode is enabled", "td.debug_off", Kind::Evidence, None),
    ("TD profiling is enabled", "td.debug_off", Kind::Evidence, None),
    ("Reserved bits in TD attributes", "td.attributes", Kind::Evidence, None),
    ("TD migration is enabled", "td.attributes", Kind::Evidence, None),
    ("SERVTD_EXT is enabled", "td.attributes", Kind::Evidence, None),
    ("SEPT_VE_DISABLE is not enabled", "td.attributes", Kind::Evidence, None),
    ("Invalid MR service TD", "td.service", Kind::Evidence, Some("a service domain is bound to the trust domain")),
    ("component count mismatch", "tcb.platform", Kind::Collateral, None),
    ("Unrecognized TCB status", "collateral.signature", Kind::Collateral, None),
    ("TcbInfo", "collateral.signature", Kind::Collateral, None),
    ("TCB Info", "collateral.signature", Kind::Collateral, None),
    ("QeIdentity", "collateral.signature", Kind::Collateral, None),
    ("QE Identity", "collateral.signature", Kind::Collateral, None),
    ("MRSIGNER", "tcb.qe", Kind::Evidence, None),
    ("ISVPRODID", "tcb.qe", Kind::Evidence, None),
    ("QE", "tcb.qe", Kind::Evidence, None),
];

impl Fault {
    /// Whether all signatures hold and it is the trust domain that is not sound.
    pub(in crate::tdx) fn is_about_domain(&self) -> bool {
        self.code.starts_with("td.")
    }

    /// What the engine's text means.
    pub(super) fn of(text: &str) -> Self {
        let row = TABLE.iter().find(|(part, ..)| text.contains(part));
        let &(_, code, kind, ours) = row.unwrap_or(&("", "quote.signature", Kind::Evidence, None));
        let found = ours.map_or_else(|| super::lower(text), ToOwned::to_owned);
        let text = match kind {
            Kind::Clock => format!("{found}: check the clock of this machine, then fetch collateral anew"),
            Kind::Evidence | Kind::Collateral => found,
        };
        Self { code, kind, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_behind_and_one_ahead_are_one_thing() {
        for text in ["TCBInfo expired", "TCBInfo issue date is in the future", "QE Identity expired"] {
            let fault = Fault::of(text);
            assert_eq!((fault.code, fault.kind), ("collateral.validity", Kind::Clock));
            assert!(fault.text.contains("check the clock"), "{}", fault.text);
        }
    }

    #[test]
    fn a_text_that_nobody_knows_rejects() {
        assert_eq!(Fault::of("something new").kind, Kind::Evidence);
    }
}
