//! From the root to the signature of a report.

use super::Inputs;
use super::product::Product;
use super::report::{Report, Signer};
use super::revocation::{self, Chain};
use super::roots::Root;
use super::table::Table;
use super::wanted::Collateral;
use super::x509::{Certificate, Endorsement};
use crate::Factor;
use crate::hex::{encode, one_of};
use crate::policy::Snp;
use crate::time::show;

/// Who signed the report, and whether that key is the chip's at the TCB that it reports; with the product by its
/// certificate.
pub(super) fn judge(
    report: &Report,
    inputs: &Inputs<'_>,
    collateral: &Collateral,
    policy: &Snp,
) -> (Vec<Factor>, Option<Product>) {
    let signer = report.signer();
    let mut out = vec![Factor::judged(
        "snp.signer",
        policy.signers.contains(&signer),
        one_of(policy.signers.iter().map(|signer| signer.common_name())),
        signer.common_name(),
    )];
    let (certificate, endorsement, root, intermediate) = match find(signer, inputs, collateral) {
        Ok(found) => found,
        Err(Unfit::Absent(reason)) => {
            out.push(Factor::skipped(CERTIFICATE, expected(signer), reason));
            return (out, None);
        }
        Err(Unfit::Wrong(found)) => {
            out.push(Factor::judged(CERTIFICATE, false, expected(signer), found));
            return (out, None);
        }
    };
    out.push(Factor::judged(CERTIFICATE, true, expected(signer), certificate.common_name()));
    out.push(product(report, &endorsement, policy));
    out.push(links(signer, root, &intermediate, &certificate));
    out.push(validity(&[root.ark(), &intermediate, &certificate], inputs.now));
    let chain = Chain { ark: root.ark(), intermediate: &intermediate, endorsement: &certificate };
    out.push(revocation::judge(&collateral.revocation, chain, inputs.now, policy.require_crl));
    out.push(match report.signed_by(certificate.key()) {
        true => Factor::judged("snp.signature", true, "the report's, by this certificate's key", "good"),
        false => Factor::judged("snp.signature", false, "the report's, by this certificate's key", "another"),
    });
    out.push(chip(report, &endorsement));
    out.push(Factor::judged(
        "snp.tcb.certified",
        endorsement.tcb == report.reported(),
        format!("the reported TCB: {}", report.reported()),
        endorsement.tcb.to_string(),
    ));
    (out, Some(endorsement.product))
}

/// Why there is no certificate to check a report with.
enum Unfit {
    /// None at hand: nothing can be said of the report.
    Absent(String),
    /// One that is not what it should be.
    Wrong(String),
}

/// The signer's certificate with what it says, and what it hangs on. A VLEK's is never taken for a VCEK's.
fn find<'a>(
    signer: Signer,
    inputs: &Inputs<'a>,
    collateral: &Collateral,
) -> Result<(Certificate, Endorsement, &'a Root, Certificate), Unfit> {
    let wrong = |error: &dyn std::fmt::Display| Unfit::Wrong(error.to_string());
    let table = Table::parse(inputs.certificates).map_err(|error| wrong(&error))?;
    let der = table.endorsement(signer).or(collateral.endorsement.as_deref()).ok_or_else(|| {
        Unfit::Absent(match (signer, &table) {
            (Signer::Vcek, Table { vlek: Some(_), .. }) => {
                "a VLEK's alone came, and the report names a VCEK".to_owned()
            }
            (Signer::Vlek, Table { vcek: Some(_), .. }) => {
                "a VCEK's alone came, and the report names a VLEK".to_owned()
            }
            _ => "none came with the report, and there is none in the collateral".to_owned(),
        })
    })?;
    let certificate = Certificate::parse(der).map_err(|error| wrong(&error))?;
    let name = certificate.common_name();
    if name != signer.common_name() {
        return Err(Unfit::Wrong(format!("{name}, and the report names a {}", signer.common_name())));
    }
    let endorsement = certificate.endorsement().map_err(|error| wrong(&error))?;
    let product = endorsement.product;
    let root = inputs.roots.root(product).ok_or(Unfit::Wrong(format!("{product}, no root of which is known")))?;
    let intermediate = root.intermediate(signer, table.intermediate.as_deref()).map_err(Unfit::Wrong)?;
    Ok((certificate, endorsement, root, intermediate))
}

const CERTIFICATE: &str = "snp.certificate";

fn expected(signer: Signer) -> String {
    format!("certificate of the {} that signed", signer.common_name())
}

/// The report, from version 3 on, and the certificate must agree.
fn product(report: &Report, endorsement: &Endorsement, policy: &Snp) -> Factor {
    let product = endorsement.product;
    let (good, found) = match report.product() {
        Some(other) if other != product => (false, format!("{product} in the certificate, {other} in the report")),
        _ => (policy.products.contains(&product), product.to_string()),
    };
    Factor::judged("snp.product", good, one_of(&policy.products), found)
}

/// Each certificate is signed by the one above it, and bears the name that its place asks for.
fn links(signer: Signer, root: &Root, intermediate: &Certificate, certificate: &Certificate) -> Factor {
    let ark = root.ark();
    let place = match signer {
        Signer::Vcek => "SEV-",
        Signer::Vlek => "SEV-VLEK-",
    };
    let product = ark.common_name().strip_prefix("ARK-").map(str::to_owned).unwrap_or_default();
    let expected = format!("ARK-{product}, {place}{product}, {}", signer.common_name());
    let fault = if !ark.issued_by(ark) {
        Some("the root does not carry its own signature".to_owned())
    } else if intermediate.common_name() != format!("{place}{product}") {
        Some(format!("{} is in the place of the signing key", intermediate.common_name()))
    } else if !intermediate.issued_by(ark) {
        Some(format!("{} is not signed by the root", intermediate.common_name()))
    } else if !certificate.issued_by(intermediate) {
        let (name, issuer) = (certificate.common_name(), certificate.issuer_name());
        Some(format!("{name} names {issuer} and is not signed by {}", intermediate.common_name()))
    } else {
        None
    };
    match fault {
        Some(fault) => Factor::judged("snp.chain", false, expected, fault),
        None => Factor::judged("snp.chain", true, expected.clone(), expected),
    }
}

fn validity(chain: &[&Certificate], now: u64) -> Factor {
    const CODE: &str = "snp.validity";
    let expected = "certificates that are valid now";
    for certificate in chain {
        let (from, until) = certificate.validity();
        if now < from || now > until {
            let (name, from, until, now) = (certificate.common_name(), show(from), show(until), show(now));
            let reason =
                format!("{name} is valid from {from} to {until} and it is {now}: check the clock of this machine");
            return Factor::skipped(CODE, expected, reason);
        }
    }
    Factor::judged(CODE, true, expected, "valid")
}

/// A VCEK's certificate names the chip, which must be the report's; a VLEK's names a provider and no chip.
fn chip(report: &Report, endorsement: &Endorsement) -> Factor {
    let in_report = &report.fields().chip_id;
    match (report.signer(), &endorsement.chip) {
        (Signer::Vcek, Some(chip)) => {
            let mut padded = [0; 64];
            let fits = matches!(chip.len(), 8 | 64);
            for (out, byte) in padded.iter_mut().zip(chip) {
                *out = *byte;
            }
            Factor::judged("snp.chip_id", fits && padded == *in_report, encode(in_report), encode(chip))
        }
        (Signer::Vcek, None) => Factor::judged("snp.chip_id", false, encode(in_report), "no chip in the certificate"),
        (Signer::Vlek, Some(chip)) => {
            Factor::judged("snp.chip_id", false, "no chip in a VLEK's certificate", encode(chip))
        }
        (Signer::Vlek, None) => Factor::noted(
            "snp.chip_id",
            format!("not certified: VLEK of {}", endorsement.provider.as_deref().unwrap_or("?")),
        ),
    }
}
