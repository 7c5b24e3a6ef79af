//! What to ask AMD's key distribution service for.

use super::product::Product;
use super::report::{Report, Signer};
use super::tcb::Tcb;
use crate::hex::encode;

/// The certificate of a chip's endorsement key that belongs to a report, AMD 57230 section 4.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Family of the chip.
    pub product: Product,
    /// As the report has it, 64 bytes.
    pub chip: [u8; 64],
    /// Versions that the key derives from.
    pub tcb: Tcb,
}

impl Wanted {
    /// What a report needs: for each of the policy's products if the report, of version 2, does not name its own. Nothing
    /// for a VLEK, whose certificate AMD gives to the provider alone, and nothing for bytes that are no report.
    #[must_use]
    pub fn of(report: &[u8], products: &[Product]) -> Vec<Self> {
        let Ok(report) = Report::parse(report) else { return Vec::new() };
        if report.signer() == Signer::Vlek {
            return Vec::new();
        }
        let wanted = |product| Self { product, chip: report.fields().chip_id, tcb: report.reported() };
        match report.product() {
            Some(product) => vec![wanted(product)],
            None => products.iter().copied().map(wanted).collect(),
        }
    }

    /// Path and query of the certificate at the service, for example
    /// `/vcek/v1/Milan/d495..?blSPL=03&teeSPL=00&snpSPL=08&ucodeSPL=115`.
    #[must_use]
    pub fn path(&self) -> String {
        let Self { product, chip, tcb } = self;
        let Tcb { bootloader, tee, snp, microcode, .. } = tcb;
        let (chip, fmc) = match tcb.fmc {
            Some(fmc) => (&chip[..8], format!("fmcSPL={fmc:02}&")),
            None => (&chip[..], String::new()),
        };
        let chip = encode(chip);
        format!(
            "/vcek/v1/{product}/{chip}?{fmc}blSPL={bootloader:02}&teeSPL={tee:02}&snpSPL={snp:02}&ucodeSPL={microcode:02}"
        )
    }

    /// Path of the revocation list that covers a signer of the product.
    #[must_use]
    pub fn revocation_path(product: Product, signer: Signer) -> String {
        match signer {
            Signer::Vcek => format!("/vcek/v1/{product}/crl"),
            Signer::Vlek => format!("/vlek/v1/{product}/crl"),
        }
    }
}
