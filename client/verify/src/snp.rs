//! AMD SEV-SNP: who signed an attestation report, and whether a policy accepts what it says.

mod bundle;
mod chain;
mod claims;
mod product;
mod report;
mod revocation;
mod roots;
mod table;
mod tcb;
mod wanted;
mod x509;

pub use bundle::{Bundle, BundleError};
pub use product::Product;
pub use report::{Measurements, Report, ReportError, Signer};
pub use revocation::RevocationList;
pub use roots::{Root, Roots};
pub use table::{Table, TableError};
pub use tcb::Tcb;
pub use wanted::{AMD_KDS, Collateral, Wanted};
pub use x509::{Certificate, Endorsement, X509Error};

use crate::Factor;
use crate::collateral::CollateralSource;
use crate::policy::Snp;

/// What a report is judged with, apart from the policy.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The report, of 1184 bytes.
    pub report: &'a [u8],
    /// The certificates that came with it, see [`Table`]; may be empty.
    pub certificates: &'a [u8],
    /// Where the certificate of the key that signed is, if it did not come with the report, and revocation lists; lists of
    /// other products are passed over. Asked for only after the report is found to be about `report_data`.
    pub collateral: &'a dyn CollateralSource,
    /// Whose signature counts.
    pub roots: &'a Roots,
    /// What the report must be about, all 64 bytes.
    pub report_data: &'a [u8; 64],
    /// Seconds since 1970.
    pub now: u64,
}

/// Judges a report. It is accepted if every factor holds; after a report that cannot be read, or that is
/// about something else, the rest is not looked at.
#[must_use]
pub fn judge(inputs: &Inputs<'_>, policy: &Snp) -> Vec<Factor> {
    let report = match Report::parse(inputs.report) {
        Ok(report) => report,
        Err(error) => return vec![Factor::judged(PARSE, false, PARSE_EXPECTED, error.to_string())],
    };
    let mut out = vec![Factor::judged(PARSE, true, PARSE_EXPECTED, format!("version {}", report.fields().version))];
    let bound = crate::verify::bound(inputs.report_data, &report.fields().report_data);
    let relayed = !bound.holds();
    out.push(bound);
    if relayed {
        // Cheap to find out, and then nothing else is worth the work.
        out.push(Factor::skipped("snp.signature", "the report's, by a key of AMD's chip", "not about this connection"));
        return out;
    }
    let wanted = Wanted::of_report(&report, &policy.products);
    let collateral = inputs.collateral.snp(&wanted).unwrap_or_else(|error| {
        out.push(Factor::noted("snp.collateral", error.to_string()));
        Collateral::default()
    });
    let (chain, product) = chain::judge(&report, inputs, &collateral, policy);
    out.extend(chain);
    out.extend(claims::judge(&report, product.or(report.product()), policy));
    out
}

/// For tests and fuzzing: reads the bytes as each structure of this module; nothing may panic.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) -> usize {
    let report = Report::parse(bytes).map(|report| report.signed_by(&bytes[..97])).is_ok();
    let table = Table::parse(bytes).is_ok();
    let certificate = Certificate::parse(bytes).map(|certificate| certificate.endorsement().is_ok()).is_ok();
    let list = RevocationList::parse(bytes).is_ok();
    [report, table, certificate, list].into_iter().map(usize::from).sum()
}

const PARSE: &str = "snp.report.parse";
const PARSE_EXPECTED: &str = "a signed report of version 2, 3 or 5";
