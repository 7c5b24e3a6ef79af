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
pub use report::{Report, ReportError, Signer};
pub use revocation::RevocationList;
pub use roots::{Root, Roots};
pub use table::{Table, TableError};
pub use tcb::Tcb;
pub use wanted::{AMD_KDS, Collateral, Wanted};
pub use x509::{Certificate, Endorsement, X509Error};

use crate::Factor;
use crate::policy::Snp;

/// What a report is judged with, apart from the policy.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The report, of 1184 bytes.
    pub report: &'a [u8],
    /// The certificates that came with it, see [`Table`]; may be empty.
    pub certificates: &'a [u8],
    /// DER certificate of the key that signed, from a cache or AMD; used if none came with the report. See [`Wanted`].
    pub endorsement: Option<&'a [u8]>,
    /// DER revocation lists; those of other products are passed over.
    pub revocation: &'a [Vec<u8>],
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
    let bound = claims::report_data(&report, inputs.report_data);
    let relayed = !bound.holds();
    out.push(bound);
    if relayed {
        // Cheap to find out, and then nothing else is worth the work.
        out.push(Factor::skipped("snp.signature", "the report's, by a key of AMD's chip", "not about this connection"));
        return out;
    }
    let (chain, product) = chain::judge(&report, inputs, policy);
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
