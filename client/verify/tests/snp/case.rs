//! A case made right, for tests to put one thing wrong.

pub(crate) use crate::amd::bench::{MILAN, NOW};
pub(crate) use crate::amd::vectors::{RELAYED, Random, extra, failed, found, own};
pub(crate) use crate::amd::{self, Content, MAKER, Maker, certificate, name, pss, signed, tlv};
use attest_verify::collateral::{CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3};
use attest_verify::factor::Factor;
pub(crate) use attest_verify::hex::HexBytes;
pub(crate) use attest_verify::policy::Snp;
pub(crate) use attest_verify::snp::{
    AMD_KDS, Bundle, Certificate, Collateral, Inputs, Product, Report, ReportError, Roots, Signer, Table, TableError,
    Wanted, judge, read_anything,
};
use std::sync::LazyLock;

pub(crate) static AMD: LazyLock<Roots> = LazyLock::new(|| Roots::amd().unwrap());

pub(crate) fn policy(text: &str) -> Snp {
    toml::from_str(text).unwrap()
}

/// With one line changed.
pub(crate) fn edited(from: &str, to: &str) -> Snp {
    let text = MILAN.replace(from, to);
    assert_ne!(text, MILAN, "{from} is not in the policy");
    policy(&text)
}

/// What fails without a certificate: a report of version 2 does not name its product, so no floor is known either.
pub(crate) const NO_CERTIFICATE: [&str; 2] = ["snp.certificate", "snp.tcb.floor"];

pub(crate) fn milan() -> (Vec<u8>, Vec<u8>) {
    let text = String::from_utf8(own("sev-crate/report_milan.hex")).unwrap();
    (amd::hex(text.trim()), own("sev-crate/vcek_milan.der"))
}

pub(crate) fn report_data(report: &[u8]) -> [u8; 64] {
    report[0x50..0x90].try_into().unwrap()
}

/// A case, made right; tests put one thing wrong.
pub(crate) struct Case {
    pub(crate) report: Vec<u8>,
    pub(crate) certificates: Vec<u8>,
    pub(crate) endorsement: Option<Vec<u8>>,
    pub(crate) revocation: Vec<Vec<u8>>,
    pub(crate) roots: Roots,
    pub(crate) report_data: [u8; 64],
    pub(crate) now: u64,
}

impl Case {
    pub(crate) fn milan() -> Self {
        let (report, endorsement) = milan();
        let report_data = report_data(&report);
        Self {
            report,
            certificates: Vec::new(),
            endorsement: Some(endorsement),
            revocation: Vec::new(),
            roots: AMD.clone(),
            report_data,
            now: NOW,
        }
    }

    /// The same report under our own root, with what came with it in a table, and with a revocation list.
    pub(crate) fn made(edit: impl FnOnce(&mut [u8])) -> Self {
        let mut case = Self::milan();
        case.report = MAKER.report(&case.report, edit);
        case.report_data = report_data(&case.report);
        case.endorsement = None;
        case.certificates = table(&[(ASK, &signing()), (VCEK, &endorsement(|_| {}))]);
        case.revocation = vec![list("ARK-Milan", &MAKER.ark, ("240101000000Z", Some("260101000000Z")), &[])];
        case.roots = Roots::of(&[certificate(&MAKER.root(), &MAKER.ark)]).unwrap();
        case
    }

    pub(crate) fn judge(&self, policy: &Snp) -> Vec<Factor> {
        let inputs = Inputs {
            report: &self.report,
            certificates: &self.certificates,
            collateral: self,
            roots: &self.roots,
            report_data: &self.report_data,
            now: self.now,
        };
        judge(&inputs, policy)
    }

    pub(crate) fn failed(&self, policy: &Snp) -> Vec<&'static str> {
        failed(&self.judge(policy))
    }
}

impl CollateralSource for Case {
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Err(CollateralError { wanted: key.to_string(), tried: Vec::new() })
    }

    fn snp(&self, wanted: &Wanted) -> Result<Collateral, CollateralError> {
        assert_eq!(wanted.chip.0, self.report[0x1a0..0x1e0]);
        Ok(Collateral { endorsement: self.endorsement.clone(), revocation: self.revocation.clone() })
    }
}

pub(crate) static STRANGER: LazyLock<Maker> = LazyLock::new(Maker::new);

pub(crate) fn chip() -> [u8; 64] {
    milan().0[0x1a0..0x1e0].try_into().unwrap()
}

pub(crate) fn signing() -> Vec<u8> {
    certificate(&MAKER.signing(), &MAKER.ark)
}

pub(crate) fn endorsement(edit: impl FnOnce(&mut Content)) -> Vec<u8> {
    let mut content = MAKER.endorsement(&chip());
    edit(&mut content);
    certificate(&content, &MAKER.ask)
}

pub(crate) const VCEK: &str = "63da758de6644564adc5f4b93be8accd";
pub(crate) const VLEK: &str = "a8074bc2a25a483eaae639c045a0b8a1";
pub(crate) const ASK: &str = "4ab7b379bbac4fe4a02f05aef327c782";

pub(crate) fn table(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (guid, der) in entries {
        let offset = u32::try_from(24 * (entries.len() + 1) + data.len()).unwrap();
        header.extend(amd::hex(guid));
        header.extend(offset.to_le_bytes());
        header.extend(u32::try_from(der.len()).unwrap().to_le_bytes());
        data.extend_from_slice(der);
    }
    header.extend([0; 24]);
    header.extend(data);
    header
}

/// A revocation list, RFC 5280 section 5.1.
pub(crate) fn list(
    issuer: &str,
    key: &aws_lc_rs::signature::RsaKeyPair,
    holds: (&str, Option<&str>),
    serials: &[u8],
) -> Vec<u8> {
    let time = |text: &str| tlv(0x17, text.as_bytes());
    let revoked: Vec<u8> =
        serials.iter().flat_map(|serial| tlv(0x30, &[tlv(2, &[*serial]), time("240601000000Z")].concat())).collect();
    let mut body = vec![tlv(2, &[1]), pss(), name(issuer), time(holds.0)];
    body.extend(holds.1.map(time));
    if !revoked.is_empty() {
        body.push(tlv(0x30, &revoked));
    }
    signed(&tlv(0x30, &body.concat()), key)
}
