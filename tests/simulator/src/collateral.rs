//! What a verifier needs beside a quote, made to order.

use crate::certificate::Holder;
use crate::instant::DAY;
use crate::spoil::spoiled;
use crate::{Platform, SimulatorError, tcb};
use dcap_qvl::{QuoteCollateralV3, TcbStatus};

/// What the collateral shall say. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollateralSpec {
    /// When TCB info, quoting enclave identity and revocation lists were issued.
    pub issue_date: u64,
    /// Until when TCB info and quoting enclave identity hold.
    pub next_update: u64,
    /// Until when the revocation lists hold.
    pub crl_next_update: u64,
    /// Date of the levels that the platform meets.
    pub tcb_date: u64,
    /// `tcbEvaluationDataNumber` of both documents.
    pub eval_number: u32,
    /// Status of the platform: CPU and provisioning enclave.
    pub status: TcbStatus,
    /// Advisories beside [`CollateralSpec::status`].
    pub advisories: Vec<String>,
    /// Status of the TDX module.
    pub module_status: TcbStatus,
    /// Advisories beside [`CollateralSpec::module_status`].
    pub module_advisories: Vec<String>,
    /// Status of the quoting enclave.
    pub qe_status: TcbStatus,
    /// Advisories beside [`CollateralSpec::qe_status`].
    pub qe_advisories: Vec<String>,
    /// Number of both revocation lists.
    pub crl_number: u64,
    /// What the revocation lists list.
    pub revoked: Vec<Revoked>,
    /// One thing that is wrong where every other is right.
    pub flaw: Option<CollateralFlaw>,
}

/// A certificate that its issuer has revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The root itself.
    Root,
    /// The authority of platforms.
    PlatformCa,
    /// The signer of TCB info and quoting enclave identity.
    TcbSigner,
    /// The platform.
    Pck,
}

/// One thing that is wrong with collateral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollateralFlaw {
    /// One bit of the signature over the TCB info.
    TcbInfoSignature,
    /// One bit of the signature over the quoting enclave identity.
    QeIdentitySignature,
    /// One bit of the root's signature over its revocation list.
    RootCrlSignature,
    /// One bit of the platform authority's signature over its revocation list.
    PckCrlSignature,
    /// The TCB info is signed by a platform's key, which the root has certified for something else.
    SignedByPlatform,
    /// TCB info of another family of platforms.
    Fmspc,
    /// Every level is above the platform.
    NoMatchingLevel,
    /// 17 components of the CPU.
    SgxComponents,
    /// 17 components of the TDX module.
    TdxComponents,
    /// The identity is of a quoting enclave of another signer.
    QeSigner,
}

impl CollateralSpec {
    /// Issued a day before `now` for 30 days, revocation lists for a year: everything up to date.
    #[must_use]
    pub fn at(now: u64) -> Self {
        let issue_date = now.saturating_sub(DAY);
        Self {
            issue_date,
            next_update: issue_date.saturating_add(30 * DAY),
            crl_next_update: issue_date.saturating_add(365 * DAY),
            tcb_date: issue_date.saturating_sub(180 * DAY),
            eval_number: 20,
            status: TcbStatus::UpToDate,
            advisories: Vec::new(),
            module_status: TcbStatus::UpToDate,
            module_advisories: Vec::new(),
            qe_status: TcbStatus::UpToDate,
            qe_advisories: Vec::new(),
            crl_number: 1,
            revoked: Vec::new(),
            flaw: None,
        }
    }

    /// The same with this status of the platform, and an advisory if that is not the best.
    #[must_use]
    pub fn status(self, status: TcbStatus) -> Self {
        let advisories = match status {
            TcbStatus::UpToDate => Vec::new(),
            _ => vec!["SIMULATED-SA-00001".to_owned()],
        };
        Self { status, advisories, ..self }
    }

    /// The same with this certificate revoked.
    #[must_use]
    pub fn revoking(mut self, certificate: Revoked) -> Self {
        self.revoked.push(certificate);
        self
    }

    /// The same with this wrong in it.
    #[must_use]
    pub fn flawed(self, flaw: CollateralFlaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

impl Platform {
    /// The collateral of this platform.
    ///
    /// # Errors
    /// [`SimulatorError`] for times that cannot be written, or of revocation lists that end before they begin.
    pub fn collateral(&self, spec: &CollateralSpec) -> Result<QuoteCollateralV3, SimulatorError> {
        let has = |flaw| spec.flaw == Some(flaw);
        let authority = &self.authority;
        let (root, ca, signer) = (&authority.root, &authority.platform_ca, &authority.tcb_signer);
        let crl = |issuer: &Holder, issued: &[(Revoked, &Holder)], flaw| -> Result<Vec<u8>, SimulatorError> {
            let revoked: Vec<_> =
                issued.iter().filter(|(name, _)| spec.revoked.contains(name)).map(|(_, holder)| *holder).collect();
            let window = (spec.issue_date, spec.crl_next_update);
            Ok(spoiled(issuer.revocations(&revoked, &spec.crl_number.to_be_bytes(), window)?, has(flaw)))
        };
        let by_root = [(Revoked::Root, root), (Revoked::PlatformCa, ca), (Revoked::TcbSigner, signer)];
        let by_ca = [(Revoked::Pck, &self.pck)];

        let tcb_info = tcb::tcb_info(&self.spec, spec)?;
        let qe_identity = tcb::qe_identity(&self.spec, spec)?;
        let signer_chain = [signer.pem.as_str(), root.pem.as_str()].concat();
        let (tcb_info_signer, tcb_info_issuer_chain) = if has(CollateralFlaw::SignedByPlatform) {
            (&self.pck, self.pck_chain())
        } else {
            (signer, signer_chain.clone())
        };
        Ok(QuoteCollateralV3 {
            pck_crl_issuer_chain: [ca.pem.as_str(), root.pem.as_str()].concat(),
            root_ca_crl: crl(root, &by_root, CollateralFlaw::RootCrlSignature)?,
            pck_crl: crl(ca, &by_ca, CollateralFlaw::PckCrlSignature)?,
            tcb_info_issuer_chain,
            tcb_info_signature: spoiled(
                tcb_info_signer.key.sign_raw(tcb_info.as_bytes()),
                has(CollateralFlaw::TcbInfoSignature),
            ),
            tcb_info,
            qe_identity_issuer_chain: signer_chain,
            qe_identity_signature: spoiled(
                signer.key.sign_raw(qe_identity.as_bytes()),
                has(CollateralFlaw::QeIdentitySignature),
            ),
            qe_identity,
            pck_certificate_chain: None,
        })
    }
}
