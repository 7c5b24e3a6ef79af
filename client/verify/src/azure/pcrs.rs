//! PCRs against a quote and a policy.

use super::tpm::TpmQuote;
use crate::Factor;
use crate::hex::{Hex, Sha256, encode, one_of};
use crate::policy::Azure;
use sha2::Digest as _;

/// The values beside a quote count if its digest covers them, and then the policy says which are accepted.
pub(super) fn judge(quote: &TpmQuote, values: &[u8], policy: &Azure) -> Vec<Factor> {
    let Some(values) = split(values) else {
        let found = format!("{} bytes", values.len());
        return vec![Factor::judged("azure.pcrs", false, "24 PCRs of 32 bytes", found)];
    };
    let covered = |index: usize| u8::try_from(index).is_ok_and(|index| quote.covers(index));
    let missing: Vec<u8> = policy.pcr.keys().copied().filter(|index| !quote.covers(*index)).collect();
    let mut out = vec![Factor::judged(
        "azure.tpm.selection",
        missing.is_empty(),
        "every PCR of the policy",
        match missing.as_slice() {
            [] => "all of them".to_owned(),
            missing => format!("not {missing:?}"),
        },
    )];
    let mut hash = sha2::Sha256::new();
    for (_, value) in values.iter().enumerate().filter(|(index, _)| covered(*index)) {
        hash.update(value.0);
    }
    let digest: [u8; 32] = hash.finalize().into();
    out.push(Factor::judged(
        "azure.tpm.pcr_digest",
        digest == *quote.digest(),
        encode(quote.digest()),
        encode(&digest),
    ));
    for (index, (code, value)) in CODES.into_iter().zip(values).enumerate() {
        let accepted = u8::try_from(index).ok().and_then(|index| policy.pcr.get(&index));
        match accepted {
            Some(accepted) => {
                let good = covered(index) && accepted.contains(&value);
                out.push(Factor::judged(code, good, one_of(accepted), value.to_string()));
            }
            None if covered(index) => out.push(Factor::noted(code, value.to_string())),
            // What the quote does not cover is anybody's word.
            None => {}
        }
    }
    out
}

fn split(values: &[u8]) -> Option<[Sha256; 24]> {
    let values: &[u8; 24 * 32] = values.try_into().ok()?;
    let mut out = [Hex([0; 32]); 24];
    for (slot, value) in out.iter_mut().zip(values.chunks_exact(32)) {
        slot.0.copy_from_slice(value);
    }
    Some(out)
}

const CODES: [&str; 24] = [
    "azure.pcr0",
    "azure.pcr1",
    "azure.pcr2",
    "azure.pcr3",
    "azure.pcr4",
    "azure.pcr5",
    "azure.pcr6",
    "azure.pcr7",
    "azure.pcr8",
    "azure.pcr9",
    "azure.pcr10",
    "azure.pcr11",
    "azure.pcr12",
    "azure.pcr13",
    "azure.pcr14",
    "azure.pcr15",
    "azure.pcr16",
    "azure.pcr17",
    "azure.pcr18",
    "azure.pcr19",
    "azure.pcr20",
    "azure.pcr21",
    "azure.pcr22",
    "azure.pcr23",
];
