//! Lanes that are ready before something is measured.
//!
//! A matrix is refilled when a quarter of its lanes is left, in the background and on the processors that are being
//! measured. So before a measurement the pool must hold that quarter and what the measurement takes. Where it holds
//! less but is not refilled yet, what lies above the quarter is used up first.

use std::time::Duration;

use proto::v1;

use crate::Error;
use crate::inference::Runtime;
use crate::lanes::{Patience, filled};
use crate::progress::Progress;

/// The share of its lanes at which a matrix is refilled.
const REFILLED_AT: u64 = 4;
/// Lanes come in multiples of this.
const STEP: u64 = 32;
/// Lanes of one batch: a pool is filled by one batch a matrix.
const BATCH: u64 = 2048;
/// Tokens of one request that uses lanes up.
const BURN: u64 = 64;
const POLL: Duration = Duration::from_millis(200);

/// Lanes to keep so that `wanted` can be used before any refill begins, as far as one batch goes.
pub(super) fn to_keep(wanted: u64) -> u32 {
    let lanes = (wanted + wanted / (REFILLED_AT - 1) + 1).next_multiple_of(STEP).clamp(64, BATCH);
    u32::try_from(lanes).unwrap_or(64)
}

/// Waits until `wanted` lanes can be used before a refill begins, or as many as a full pool has for that, and returns
/// the pool as it is then.
///
/// # Errors
/// Those of [`filled`], and the runtime's.
pub(super) async fn ready(runtime: &Runtime, wanted: u64, progress: &Progress) -> Result<v1::Lanes, Error> {
    loop {
        // More than a quarter: no matrix is being refilled.
        let capacity = capacity(runtime).await?;
        let lanes = filled(runtime, capacity / REFILLED_AT + 1, &Patience::default(), progress).await?;
        progress.idle();
        let above = lanes.ready.saturating_sub(capacity / REFILLED_AT);
        let full = lanes.ready + STEP > capacity.min(BATCH);
        if above > wanted || full {
            return Ok(lanes);
        }
        progress.busy(format!("using up {above} lanes, so that the pool is filled"));
        burn(runtime, above).await?;
        progress.idle();
    }
}

/// The pool's size, when it is known.
async fn capacity(runtime: &Runtime) -> Result<u64, Error> {
    loop {
        match runtime.lanes().await? {
            Some(lanes) if lanes.capacity > 0 => return Ok(lanes.capacity),
            _ => tokio::time::sleep(POLL).await,
        }
    }
}

/// Uses `lanes` lanes up, by answers that nobody reads.
async fn burn(runtime: &Runtime, lanes: u64) -> Result<(), Error> {
    use v1::generate_request::Input;
    let mut left = lanes;
    while left > 0 {
        let tokens = left.min(BURN);
        left -= tokens;
        let mut request = v1::GenerateRequest {
            input: Some(Input::TokenIds(v1::TokenIds { ids: vec![0] })),
            // The first token takes a lane only where prompts are delegated.
            max_tokens: u32::try_from(tokens + 1).unwrap_or(1),
            ignore_eos: true,
            ..Default::default()
        };
        request.set_protocol(v1::Protocol::Masked);
        request.set_policy(v1::Policy::HybridPdSplit);
        runtime.generate(request, |_| {}).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_lasts_until_a_quarter_is_left() {
        for wanted in [0, 1, 31, 100, 512, 1000, 1500] {
            let lanes = u64::from(to_keep(wanted));
            assert!(lanes - lanes / REFILLED_AT > wanted && lanes.is_multiple_of(STEP), "{wanted}: {lanes}");
        }
        assert_eq!((to_keep(0), to_keep(1_000_000)), (64, 2048));
    }
}
