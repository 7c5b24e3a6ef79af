//! This machine: its TPM by az-tdx-vtpm, its host by the metadata service.

use super::{TpmQuote, Vtpm, imds::Imds};
use az_tdx_vtpm::vtpm;
use std::{error::Error, fs::File};

#[derive(Default)]
pub(super) struct System(Imds);

impl Vtpm for System {
    fn hcl_report(&self) -> Result<Vec<u8>, String> {
        // The C library says no more than that opening failed.
        File::options().read(true).write(true).open(DEVICE).map_err(|e| format!("{DEVICE}: {e}"))?;
        vtpm::get_report().map_err(|e| format!("NV index 0x01400001: {}", chain(&e)))
    }

    fn quote(&self, qualifying: &[u8; 32]) -> Result<TpmQuote, String> {
        let quote = vtpm::get_quote(qualifying).map_err(|e| chain(&e))?;
        let pcrs = quote.pcrs_sha256().copied().collect();
        Ok(TpmQuote { message: quote.message(), signature: quote.signature(), pcrs })
    }

    fn td_quote(&self, td_report: &[u8]) -> Result<Vec<u8>, String> {
        self.0.td_quote(td_report)
    }

    fn certificates(&self) -> Result<Vec<u8>, String> {
        self.0.certificates()
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

/// The one that az-cvm-vtpm opens, and not the resource manager's /dev/tpmrm0: one program at a time.
const DEVICE: &str = "/dev/tpm0";
