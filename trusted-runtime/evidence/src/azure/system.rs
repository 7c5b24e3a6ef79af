//! The TPM of this machine, by az-tdx-vtpm. Needs access to /dev/tpmrm0 (group `tss`).

use super::{TpmQuote, Vtpm};
use az_tdx_vtpm::{imds, report, vtpm};
use std::error::Error;

pub(super) struct System;

impl Vtpm for System {
    fn hcl_report(&self) -> Result<Vec<u8>, String> {
        vtpm::get_report().map_err(|e| chain(&e))
    }

    fn quote(&self, qualifying: &[u8; 32]) -> Result<TpmQuote, String> {
        let quote = vtpm::get_quote(qualifying).map_err(|e| chain(&e))?;
        let pcrs = quote.pcrs_sha256().copied().collect();
        Ok(TpmQuote { message: quote.message(), signature: quote.signature(), pcrs })
    }

    fn td_quote(&self, td_report: &[u8]) -> Result<Vec<u8>, String> {
        let report = report::parse(td_report).map_err(|e| chain(&e))?;
        imds::get_td_quote(&report).map_err(|e| chain(&e))
    }
}

/// An error with what it comes from.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}
