//! Intel TDX: quotes, who signed them, what they measure.
//!
//! The signatures and Intel's TCB matching are checked by the crate dcap-qvl, which `engine` alone names. It is asked for
//! facts and never for a verdict: what is good enough is decided here, by the policy.

mod engine;
mod judge;
mod measured;
mod quote;
mod tcb;

pub use engine::{Claims, QuoteCollateralV3, needs};
pub(crate) use engine::{Pck, pck};
pub use judge::{Appraisal, Findings, judge};
pub use measured::{judge_domain, judge_registers};
pub use quote::{MAX_QUOTE, Measurements, Quote, QuoteError, REPORT_DATA};
