//! Waiting until the runtime's mask pool holds enough lanes for a request.
//!
//! A lane is what one vector through every matrix takes, so a request needs one for each token of its answer and, where
//! prompts are delegated too, of its prompt. The runtime fills its pool in batches, in the background; it is asked how far it is.

use std::time::{Duration, Instant};

use proto::v1;

use crate::Error;
use crate::cli::Policy;
use crate::deployment::Deployment;
use crate::inference::Runtime;
use crate::progress::Progress;

/// Lanes taken to be enough for a prompt, whose tokens only the runtime can count.
const PROMPT_LANES: u64 = 64;

/// How long to wait, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Pause between two questions.
    pub poll: Duration,
    /// Time a trouble of the pool has to dissolve while no lane is added.
    pub trouble: Duration,
    /// Time without an added lane after which something hangs.
    pub stall: Duration,
}

impl Default for Patience {
    /// A batch of a large model takes minutes on a small machine, and all its lanes are ready at once.
    fn default() -> Self {
        Self { poll: Duration::from_millis(500), trouble: Duration::from_secs(5), stall: Duration::from_secs(30 * 60) }
    }
}

/// Waits until the runtime of `deployment` holds the lanes of a request for `max_tokens` tokens.
///
/// # Errors
/// As [`filled`], and the death of a daemon.
pub async fn fill(deployment: &mut Deployment, max_tokens: u32, progress: &Progress) -> Result<(), Error> {
    let begin = Instant::now();
    let connection = deployment.connection().clone();
    let (wanted, patience) = (wanted(max_tokens, deployment.description()), Patience::default());
    let pool = deployment.watch(filled(&connection, wanted, &patience, progress)).await?;
    let seconds = begin.elapsed().as_secs_f64();
    progress.say(&format!(
        "lanes        {} of {} ready after {seconds:.1} s, each for one vector",
        pool.ready, pool.capacity
    ));
    Ok(())
}

/// Lanes that a demo keeps unless it is told otherwise: a part of a batch, ready sooner and in less memory than a whole
/// one, and enough for its one request, however short the tokens of its prompt are.
#[must_use]
pub fn of_a_demo(prompt: &str, max_tokens: u32, policy: Policy) -> u32 {
    const BATCH: u64 = 2048;
    // Lanes come in multiples of this.
    const STEP: u64 = 32;
    let (few, prompt) = if policy.delegates_prompts() { (512, PROMPT_LANES + prompt.len() as u64) } else { (64, 0) };
    let wanted = prompt + u64::from(max_tokens);
    u32::try_from(wanted.next_multiple_of(STEP).clamp(few, BATCH)).unwrap_or(u32::MAX)
}

/// Lanes to wait for before a request for `max_tokens` tokens; no sequence takes more than the context has positions.
#[must_use]
pub fn wanted(max_tokens: u32, model: &v1::DescribeResponse) -> u64 {
    let prompt = match Policy::of(model.default_policy()) {
        Some(policy) if !policy.delegates_prompts() => 0,
        _ => PROMPT_LANES,
    };
    let wanted = prompt + u64::from(max_tokens);
    match model.context_length {
        0 => wanted,
        context => wanted.min(context.into()),
    }
}

/// Waits until `wanted` lanes are ready, or as many as the pool can hold, and returns the pool as it is then.
///
/// # Errors
/// [`Error::Runtime`], with the lanes that are ready and those that are needed: when the pool cannot be filled, with
/// the runtime's reason; when the runtime keeps no lanes; when none is added for too long.
pub async fn filled(
    connection: &Runtime,
    wanted: u64,
    patience: &Patience,
    progress: &Progress,
) -> Result<v1::Lanes, Error> {
    let mut filling = Filling::new(wanted, *patience, Instant::now());
    loop {
        let seen = filling.see(connection.lanes().await?, Instant::now());
        if !matches!(seen, Ok(None)) {
            progress.idle();
        }
        if let Some(lanes) = seen? {
            return Ok(lanes);
        }
        progress.count("filling the mask pool: lanes", filling.ready, filling.needed);
        tokio::time::sleep(patience.poll).await;
    }
}

/// A pool that fills, as seen from outside. Has no clock of its own.
struct Filling {
    wanted: u64,
    patience: Patience,
    /// `wanted`, or the pool's capacity where that is less.
    needed: u64,
    ready: u64,
    /// When a lane was added last; the begin before that.
    grown: Instant,
    /// Since when no lane was added in spite of a trouble.
    troubled: Option<Instant>,
}

impl Filling {
    fn new(wanted: u64, patience: Patience, now: Instant) -> Self {
        Self { wanted, patience, needed: wanted, ready: 0, grown: now, troubled: None }
    }

    /// Takes one look at the pool: it when it holds enough, nothing when that is still to be waited for.
    fn see(&mut self, lanes: Option<v1::Lanes>, now: Instant) -> Result<Option<v1::Lanes>, Error> {
        // A pool that does not know its capacity yet is not full.
        let (ready, capacity) = lanes.as_ref().map_or((0, 0), |lanes| (lanes.ready, lanes.capacity));
        self.needed = if capacity == 0 { self.wanted } else { self.wanted.min(capacity) };
        if ready > self.ready {
            (self.grown, self.troubled) = (now, None);
        }
        self.ready = ready;
        let trouble = match lanes {
            Some(lanes) if capacity > 0 && ready >= self.needed => return Ok(Some(lanes)),
            Some(lanes) => lanes.trouble,
            None => "the runtime keeps no lanes".into(),
        };
        if trouble.is_empty() {
            self.troubled = None;
        } else if now - *self.troubled.get_or_insert(now) >= self.patience.trouble {
            return Err(self.error(&format!("the mask pool does not fill: {trouble}")));
        }
        let stalled = now - self.grown;
        if stalled >= self.patience.stall {
            return Err(self.error(&format!("no lane was added for {} s", stalled.as_secs())));
        }
        Ok(None)
    }

    fn error(&self, reason: &str) -> Error {
        Error::Runtime(format!("masked delegation needs {} lanes, {} are ready; {reason}", self.needed, self.ready))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pool(ready: u64, capacity: u64, trouble: &str) -> Option<v1::Lanes> {
        Some(v1::Lanes { ready, capacity, trouble: trouble.into(), ..Default::default() })
    }

    /// Shows the pools one after the other, a second apart, to somebody who wants 96 lanes.
    fn shown(pools: &[Option<v1::Lanes>]) -> Result<Option<u64>, String> {
        let begin = Instant::now();
        let patience = Patience { poll: SECOND, trouble: 2 * SECOND, stall: 6 * SECOND };
        let mut filling = Filling::new(96, patience, begin);
        let mut now = begin;
        for lanes in pools {
            now += SECOND;
            match filling.see(lanes.clone(), now) {
                Ok(None) => {}
                Ok(Some(lanes)) => return Ok(Some(lanes.ready)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(None)
    }

    #[test]
    fn enough_is_what_was_wanted_or_all_there_will_be() {
        assert_eq!(shown(&[pool(95, 2048, "")]), Ok(None));
        assert_eq!(shown(&[pool(95, 2048, ""), pool(96, 2048, "")]), Ok(Some(96)));
        assert_eq!(shown(&[pool(39, 40, ""), pool(40, 40, "")]), Ok(Some(40)));
        assert_eq!(shown(&[pool(0, 0, "")]), Ok(None), "an unknown capacity is not a full pool");
        assert_eq!(shown(&[pool(96, 2048, "the third batch failed")]), Ok(Some(96)));
    }

    #[test]
    fn trouble_has_time_to_dissolve_but_not_forever() {
        let down = pool(0, 2048, "evaluator is down");
        let error = "masked delegation needs 96 lanes, 0 are ready; the mask pool does not fill: evaluator is down";
        assert_eq!(shown(&[down.clone(), down.clone()]), Ok(None));
        assert_eq!(shown(&[down.clone(), down.clone(), down.clone()]), Err(error.into()));
        let again = [down.clone(), down.clone(), pool(0, 2048, ""), down.clone(), down, pool(96, 2048, "")];
        assert_eq!(shown(&again), Ok(Some(96)));
        let grows = [10, 20, 30, 40, 50, 96].map(|ready| pool(ready, 2048, "one of two evaluators is down"));
        assert_eq!(shown(&grows), Ok(Some(96)), "lanes are added in spite of it");
    }

    #[test]
    fn a_demo_keeps_a_part_of_a_batch_that_is_enough() {
        let unified = |prompt: &str, tokens| of_a_demo(prompt, tokens, Policy::HybridUnified);
        assert_eq!(unified("Why?", 32), 512);
        assert_eq!(unified(&"x".repeat(500), 32), 608);
        assert_eq!(unified(&"x".repeat(9000), u32::MAX), 2048);
        assert_eq!(of_a_demo(&"x".repeat(9000), 32, Policy::HybridPdSplit), 64);
        assert_eq!(of_a_demo("Why?", 100, Policy::HybridPdSplit), 128);
    }

    #[test]
    fn a_runtime_without_lanes_is_not_waited_for() {
        let error = shown(&[None, None, None]).unwrap_err();
        assert!(error.contains("needs 96 lanes") && error.ends_with("the runtime keeps no lanes"), "{error}");
    }

    #[test]
    fn a_pool_that_stalls_names_ready_and_needed() {
        let mut looks = vec![pool(0, 80, "")];
        looks.resize(7, pool(5, 80, ""));
        assert_eq!(shown(&looks), Ok(None), "the last lane came less than 6 s ago");
        looks.push(pool(5, 80, ""));
        let error = shown(&looks).unwrap_err();
        assert_eq!(error, "masked delegation needs 80 lanes, 5 are ready; no lane was added for 6 s");
    }

    #[test]
    fn no_more_is_wanted_than_the_context_has_positions() {
        let model = |context_length| v1::DescribeResponse { context_length, ..Default::default() };
        assert_eq!(wanted(32, &model(8192)), 96);
        assert_eq!(wanted(100_000, &model(512)), 512);
        assert_eq!(wanted(u32::MAX, &model(0)), 64 + u64::from(u32::MAX));
        let split = v1::DescribeResponse { default_policy: v1::Policy::HybridPdSplit.into(), ..model(8192) };
        assert_eq!(wanted(32, &split), 32, "prompts take none");
    }
}
