//! What the engine shows of each protocol, under the names that vLLM gave these figures.

use super::{Finish, Metrics};
use metrics::{Counter, Gauge, Histogram, with_local_recorder};

/// The figures of one protocol's sequences.
pub struct Track {
    waiting: Gauge,
    running: Gauge,
    usage: Gauge,
    preemptions: Counter,
    asked: Counter,
    found: Counter,
    prompt_tokens: Counter,
    success: [Counter; 2],
    sequences: Histogram,
    positions: Histogram,
    prompts: Histogram,
    answers: Histogram,
    whole: Histogram,
    queued: Histogram,
    prefill: Histogram,
    decode: Histogram,
}

/// How the engine stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Sequences that wait.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// How often a sequence had to start again, so far.
    pub preemptions: u64,
    /// Pages, and those that can be had.
    pub pages: (usize, usize),
    /// Positions looked for among the pages of others, and found, so far.
    pub reused: (u64, u64),
}

/// A sequence whose answer is complete.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub made: usize,
    /// Seconds from arrival to the end.
    pub whole: f64,
    /// Seconds of them before its first step.
    pub queued: f64,
    /// Seconds from then to the first token.
    pub prefill: f64,
}

impl Metrics {
    /// The figures of sequences whose protocol is called `protocol`.
    pub fn track(&self, protocol: String) -> Track {
        with_local_recorder(&self.0.recorder, || {
            let of = |name: &'static str| metrics::gauge!(name, "protocol" => protocol.clone());
            let sum = |name: &'static str| metrics::counter!(name, "protocol" => protocol.clone());
            let each = |name: &'static str| metrics::histogram!(name, "protocol" => protocol.clone());
            let success = |reason: &'static str| {
                let name = "bifrost_runtime_request_success_total";
                metrics::counter!(name, "protocol" => protocol.clone(), "finished_reason" => reason)
            };
            Track {
                waiting: of("bifrost_runtime_num_requests_waiting"),
                running: of("bifrost_runtime_num_requests_running"),
                usage: of("bifrost_runtime_kv_cache_usage_perc"),
                preemptions: sum("bifrost_runtime_num_preemptions_total"),
                asked: sum("bifrost_runtime_prefix_cache_queries_total"),
                found: sum("bifrost_runtime_prefix_cache_hits_total"),
                prompt_tokens: sum("bifrost_runtime_prompt_tokens_total"),
                success: [success("stop"), success("length")],
                sequences: each("bifrost_runtime_step_sequences"),
                positions: each("bifrost_runtime_step_positions"),
                prompts: each("bifrost_runtime_request_prompt_tokens"),
                answers: each("bifrost_runtime_request_generation_tokens"),
                whole: each("bifrost_runtime_e2e_request_latency_seconds"),
                queued: each("bifrost_runtime_request_queue_time_seconds"),
                prefill: each("bifrost_runtime_request_prefill_time_seconds"),
                decode: each("bifrost_runtime_request_decode_time_seconds"),
            }
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts for people")]
impl Track {
    /// How the engine stands now.
    pub fn load(&self, load: Load) {
        self.waiting.set(load.waiting as f64);
        self.running.set(load.running as f64);
        let (pages, free) = load.pages;
        self.usage.set(1.0 - free as f64 / pages.max(1) as f64);
        self.preemptions.absolute(load.preemptions);
        self.asked.absolute(load.reused.0);
        self.found.absolute(load.reused.1);
    }

    /// A pass over the weights served so many sequences with so many positions.
    pub fn step(&self, sequences: usize, positions: usize) {
        self.sequences.record(sequences as f64);
        self.positions.record(positions as f64);
    }

    /// A sequence's answer is complete.
    pub fn answered(&self, a: Answered) {
        self.success[usize::from(a.finish == Finish::Length)].increment(1);
        self.prompt_tokens.increment(a.prompt as u64);
        self.prompts.record(a.prompt as f64);
        self.answers.record(a.made as f64);
        self.whole.record(a.whole);
        self.queued.record(a.queued);
        self.prefill.record(a.prefill);
        self.decode.record((a.whole - a.queued - a.prefill).max(0.0));
    }
}
