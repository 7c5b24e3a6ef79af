//! What is shown: differences of two looks, a second's worth each.

use std::time::Instant;

use super::scrape::Samples;

/// Everybody's samples at one moment.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) runtime: Samples,
    pub(super) evaluators: Vec<(String, Option<Samples>)>,
    pub(super) proxy: Option<Samples>,
}

/// One protocol's line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Protocol {
    pub(super) name: String,
    pub(super) running: f64,
    pub(super) waiting: f64,
    /// Share of the pages in use.
    pub(super) pages: f64,
    /// Sequences a pass served.
    pub(super) batch: Option<f64>,
}

/// One evaluator's line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evaluator {
    pub(super) url: String,
    /// Absent while it does not answer: resident bytes, online jobs a second, bytes a second.
    pub(super) figures: Option<(f64, f64, f64)>,
}

/// All that is shown; rates are a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) protocols: Vec<Protocol>,
    pub(super) tokens: f64,
    pub(super) prompt_tokens: f64,
    pub(super) answered: f64,
    /// Seconds, the bounds of buckets: median and 99th percentile between tokens, median to the first.
    pub(super) inter_token: (Option<f64>, Option<f64>),
    pub(super) first_token: Option<f64>,
    pub(super) lanes: f64,
    pub(super) starved: f64,
    pub(super) connected: bool,
    pub(super) retries: f64,
    pub(super) bytes_up: f64,
    pub(super) bytes_down: f64,
    /// Forged answers since the runtime's start, by check.
    pub(super) forged: Vec<(String, f64)>,
    pub(super) evaluators: Vec<Evaluator>,
    /// Requests a proxy has running, and those it refuses a second.
    pub(super) proxy: Option<(f64, f64)>,
    /// Why these figures are old.
    pub(super) trouble: Option<String>,
}

impl Figures {
    /// From two looks.
    pub(super) fn between(before: &Look, now: &Look) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
        let r = |name: &str| format!("bifrost_runtime_{name}");
        let sum = |name: &str| now.runtime.sum(&r(name), "");
        let rate = |name: &str| ((sum(name) - before.runtime.sum(&r(name), "")) / seconds).max(0.0);
        let quantile = |name: &str, q| now.runtime.quantile(&before.runtime, &r(name), q);
        let protocols = now.runtime.by(&r("num_requests_running"), "protocol").into_iter().map(|(name, running)| {
            let of = format!("protocol=\"{name}\"");
            let grown = |n: &str| now.runtime.sum(&r(n), &of) - before.runtime.sum(&r(n), &of);
            let passes = grown("step_sequences_count");
            Protocol {
                running,
                waiting: now.runtime.sum(&r("num_requests_waiting"), &of),
                pages: now.runtime.sum(&r("kv_cache_usage_perc"), &of),
                batch: (passes > 0.0).then(|| grown("step_sequences_sum") / passes),
                name,
            }
        });
        let evaluators = now.evaluators.iter().zip(&before.evaluators).map(|((url, samples), (_, before))| {
            let before = before.clone().unwrap_or_default();
            let figures = samples.as_ref().map(|s| {
                let rate = |n: &str| ((s.sum(n, "") - before.sum(n, "")) / seconds).max(0.0);
                let jobs = rate("bifrost_evaluator_online_jobs_total");
                (s.sum("bifrost_evaluator_resident_bytes", ""), jobs, rate("bifrost_evaluator_online_bytes_total"))
            });
            Evaluator { url: url.clone(), figures }
        });
        let proxy = now.proxy.as_ref().map(|p| {
            let (running, refused) = ("bifrost_proxy_num_requests_running", "bifrost_proxy_requests_refused_total");
            let earlier = before.proxy.as_ref().map_or(0.0, |b| b.sum(refused, ""));
            (p.sum(running, ""), ((p.sum(refused, "") - earlier) / seconds).max(0.0))
        });
        Self {
            protocols: protocols.collect(),
            tokens: rate("generation_tokens_total"),
            prompt_tokens: rate("prompt_tokens_total"),
            answered: rate("request_success_total"),
            inter_token: (quantile("inter_token_latency_seconds", 0.5), quantile("inter_token_latency_seconds", 0.99)),
            first_token: quantile("time_to_first_token_seconds", 0.5),
            lanes: sum("lanes_ready"),
            starved: rate("lanes_starved_total"),
            connected: sum("evaluator_connected") > 0.0,
            retries: rate("evaluator_retries_total"),
            bytes_up: rate("ciphertext_bytes_sent_total"),
            bytes_down: rate("ciphertext_bytes_received_total"),
            forged: now.runtime.by(&r("forged_answers_total"), "check").into_iter().filter(|(_, n)| *n > 0.0).collect(),
            evaluators: evaluators.collect(),
            proxy,
            trouble: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_are_of_the_time_between_and_alarms_stay() {
        let look = |at, tokens: u32, forged: u32, evaluator: Option<&str>| Look {
            at,
            runtime: Samples::parse(&format!(
                "bifrost_runtime_generation_tokens_total {tokens}\n\
                 bifrost_runtime_num_requests_running{{protocol=\"masked\"}} 3\n\
                 bifrost_runtime_num_requests_waiting{{protocol=\"masked\"}} 1\n\
                 bifrost_runtime_evaluator_connected 1\n\
                 bifrost_runtime_forged_answers_total{{check=\"online\"}} {forged}\n\
                 bifrost_runtime_forged_answers_total{{check=\"bulk\"}} 0\n"
            )),
            evaluators: vec![("http://e".into(), evaluator.map(Samples::parse))],
            proxy: None,
        };
        let begin = Instant::now();
        let jobs = |n: u32| format!("bifrost_evaluator_online_jobs_total{{outcome=\"answered\"}} {n}\n");
        let before = look(begin, 100, 0, Some(&jobs(10)));
        let figures = Figures::between(&before, &look(begin + Duration::from_secs(2), 150, 1, Some(&jobs(30))));
        assert_eq!((figures.tokens, figures.connected), (25.0, true));
        assert_eq!(figures.forged, [("online".to_owned(), 1.0)]);
        assert_eq!(figures.evaluators[0].figures, Some((0.0, 10.0, 0.0)));
        assert_eq!((figures.protocols[0].running, figures.protocols[0].waiting), (3.0, 1.0));
        let gone = Figures::between(&before, &look(begin + Duration::from_secs(1), 90, 0, None));
        assert_eq!((gone.tokens, &gone.evaluators[0].figures), (0.0, &None), "a restarted runtime counts from zero");
    }
}
