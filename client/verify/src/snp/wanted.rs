//! What a report needs beside itself, and where AMD has it.

use super::product::Product;
use super::report::{Report, Signer};
use super::revocation::RevocationList;
use super::tcb::Tcb;
use super::x509::Certificate;
use crate::hex::{Hex, encode};
use std::fmt;

/// What to look for, by a report whose signature is not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Families of chips that it may be from: one, or in version 2, which does not say, all of the policy's.
    pub products: Vec<Product>,
    /// Whose certificate is wanted. AMD gives that of a VLEK to the provider alone.
    pub signer: Signer,
    /// As the report has it.
    pub chip: Hex<64>,
    /// Versions that the key derives from.
    pub tcb: Tcb,
}

/// What was found. It is signed, so it may come from anyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collateral {
    /// DER certificate of the key that signed the report, if the report came without one.
    pub endorsement: Option<Vec<u8>>,
    /// DER revocation lists.
    pub revocation: Vec<Vec<u8>>,
}

impl Collateral {
    /// Whether these are a certificate and lists at all; whose, and signed by whom, is judged with the report.
    ///
    /// # Errors
    /// A sentence about the first that is none.
    pub fn readable(&self) -> Result<(), String> {
        if let Some(der) = &self.endorsement {
            Certificate::parse(der).map_err(|error| format!("certificate: {error}"))?;
        }
        for der in &self.revocation {
            RevocationList::parse(der).map_err(|error| format!("revocation list: {error}"))?;
        }
        Ok(())
    }
}

/// AMD's key distribution service.
pub const AMD_KDS: &str = "https://kdsintf.amd.com";

impl Wanted {
    /// Nothing for bytes that are no report.
    #[must_use]
    pub fn of(report: &[u8], products: &[Product]) -> Option<Self> {
        Some(Self::of_report(&Report::parse(report).ok()?, products))
    }

    pub(super) fn of_report(report: &Report, products: &[Product]) -> Self {
        let products = report.product().map_or_else(|| products.to_vec(), |product| vec![product]);
        let chip = Hex(report.fields().chip_id);
        Self { products, signer: report.signer(), chip, tcb: report.reported() }
    }

    /// Addresses of the certificate, AMD 57230 section 4.1: one for each product, of which one answers. None for a VLEK's.
    #[must_use]
    pub fn certificate_urls(&self, base: &str) -> Vec<String> {
        if self.signer == Signer::Vlek {
            return Vec::new();
        }
        let Tcb { bootloader, tee, snp, microcode, .. } = self.tcb;
        let (chip, fmc) = match self.tcb.fmc {
            Some(fmc) => (&self.chip.0[..8], format!("fmcSPL={fmc:02}&")),
            None => (&self.chip.0[..], String::new()),
        };
        let chip = encode(chip);
        let levels = format!("{fmc}blSPL={bootloader:02}&teeSPL={tee:02}&snpSPL={snp:02}&ucodeSPL={microcode:02}");
        self.products.iter().map(|product| format!("{}/vcek/v1/{product}/{chip}?{levels}", trimmed(base))).collect()
    }

    /// Addresses of the revocation lists, AMD 57230 section 4.3.
    #[must_use]
    pub fn revocation_urls(&self, base: &str) -> Vec<String> {
        let kind = match self.signer {
            Signer::Vcek => "vcek",
            Signer::Vlek => "vlek",
        };
        self.products.iter().map(|product| format!("{}/{kind}/v1/{product}/crl", trimmed(base))).collect()
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let products: Vec<&str> = self.products.iter().map(|product| product.name()).collect();
        write!(f, "{} of a {}, chip {}, {}", self.signer.common_name(), products.join(" or "), self.chip, self.tcb)
    }
}

fn trimmed(base: &str) -> &str {
    base.trim_end_matches('/')
}
