//! `bifrost bench serve`: load on an OpenAI endpoint, and what its clients see of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::figures::Distribution;
use super::http::{Endpoint, Fault};
use super::load::{self, Client, Length, Load, Measured};
use super::memory::{Resident, Sampler};
use super::output::{self, Lanes, Report, Run, Summary};
use super::target::{Proxied, daemons, source};
use super::{plot, pool, text};
use crate::Error;
use crate::cli::{LocalArgs, Protocol, ServeArgs};
use crate::inference::Runtime;
use crate::progress::Progress;
use crate::stop::Stop;

const DEFAULT_REQUESTS: u32 = 32;
/// Different prompts at most; requests beyond take them again.
const PROMPTS: u32 = 64;
/// Lanes that the tokens of a load without a count of requests take, as far as anybody knows.
const ENDLESS: u64 = u64::MAX / 4;

/// Runs the bench and prints its figures.
///
/// # Errors
/// Whatever keeps the daemons from starting, an endpoint that is not one, and, after the figures, requests that failed.
pub async fn run(args: &ServeArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    plot::check(args.output.plot.as_deref())?;
    let report = match &args.url {
        Some(url) => {
            let endpoint = Endpoint::new(url, args.api_key.clone())?;
            Bench { args, progress, backstage: None }.measure(endpoint).await?
        }
        None => {
            let source = source(args.model.as_ref(), args.synthetic.as_ref(), progress, stop).await?;
            let protocol = args.local.policy.protocol(args.protocol.unwrap_or(Protocol::Masked));
            let lanes = args.local.lanes.or_else(|| protocol.masks().then(|| pool::to_keep(wanted(args))));
            let local = LocalArgs { lanes, ..args.local.clone() };
            let deployment = daemons(&source, protocol, local, progress).await?;
            let mut here = Proxied::start(deployment, args.local.verbose, progress).await?;
            let backstage = Backstage {
                runtime: here.deployment.connection().clone(),
                processes: here.deployment.processes(),
                protocol,
            };
            let bench = Bench { args, progress, backstage: Some(backstage) };
            let endpoint = Endpoint::new(&here.url, None)?;
            here.deployment.watch(bench.measure(endpoint)).await?
        }
    };
    output::serve(&report, &args.output)?;
    match report.failed() {
        None => Ok(ExitCode::SUCCESS),
        Some(failed) => Err(Error::Runtime(failed)),
    }
}

/// What is known of an endpoint that was started here.
struct Backstage {
    runtime: Runtime,
    processes: Vec<(&'static str, u32)>,
    protocol: Protocol,
}

struct Bench<'a> {
    args: &'a ServeArgs,
    progress: &'a Progress,
    backstage: Option<Backstage>,
}

impl Bench<'_> {
    async fn measure(self, endpoint: Endpoint) -> Result<Report, Error> {
        let args = self.args;
        let url = endpoint.url();
        let client = self.client(endpoint).await?;
        let mut report = Report {
            bench: "serve",
            endpoint: if self.backstage.is_some() { "started here".into() } else { url },
            model: client.model.clone(),
            protocol: self.backstage.as_ref().map(|here| here.protocol.name()),
            policy: self.backstage.as_ref().map(|_| args.local.policy.name()),
            prompt_tokens: args.prompt_tokens,
            max_tokens: args.max_tokens,
            seed: args.seed,
            verified: args.verify,
            runs: Vec::new(),
        };
        let mut client = Arc::new(client);
        let warmup = Length::Requests(args.warmup as usize);
        self.lanes(u64::from(args.warmup) * per_request(args)).await?;
        let loads = loads(args);
        let widest = loads.iter().map(|load| if let Load::Closed(n) = load { *n } else { 1 }).max().unwrap_or(1);
        self.progress.busy("warming up");
        failing(&load::run(&client, Load::Closed(widest.min(args.warmup.max(1) as usize)), warmup, "warmup", 0).await)?;
        self.progress.idle();
        if args.verify {
            let expected = self.expected(&client).await?;
            if let Some(client) = Arc::get_mut(&mut client) {
                client.expected = expected;
            }
        }
        for load in loads {
            let run = self.run(&client, load, report.runs.first()).await?;
            report.runs.push(run);
        }
        Ok(report)
    }

    /// Asks the endpoint what it serves and cuts the prompts.
    async fn client(&self, endpoint: Endpoint) -> Result<Client, Error> {
        let args = self.args;
        let refused = |path: &str, fault: &Fault| Error::Runtime(format!("{path} of the endpoint: {fault}"));
        let models = endpoint.get("/v1/models").await.map_err(|fault| refused("/v1/models", &fault))?;
        let model = models.pointer("/data/0/id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let body = json!({"model": model, "prompt": text::TEXT});
        let told = endpoint.post("/tokenize", &body).await.map_err(|fault| refused("/tokenize", &fault))?;
        let told = told.json().await.map_err(|fault| refused("/tokenize", &fault))?;
        let ids = told["tokens"].as_array().into_iter().flatten();
        let ids: Vec<u32> = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        if ids.is_empty() {
            return Err(Error::Runtime("/tokenize of the endpoint told no tokens".into()));
        }
        let (prompt, answer) = (u64::from(args.prompt_tokens), u64::from(args.max_tokens));
        if let Some(context) = told["max_model_len"].as_u64().filter(|context| prompt + answer > *context) {
            return Err(Error::Usage(format!(
                "--prompt-tokens {prompt} and --max-tokens {answer} do not fit the context of {context} tokens"
            )));
        }
        let count = args.seconds.map_or_else(|| requests(args).min(PROMPTS), |_| PROMPTS) as usize;
        let prompts = text::cut(&ids, count, args.prompt_tokens as usize, args.seed);
        let mut nonce = [0; 8];
        getrandom::fill(&mut nonce).map_err(|error| Error::Platform(format!("random bytes: {error}")))?;
        let nonce = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Client { endpoint, model, prompts, max_tokens: args.max_tokens, expected: Vec::new(), nonce })
    }

    /// The answer to each prompt, sent alone.
    async fn expected(&self, client: &Arc<Client>) -> Result<Vec<String>, Error> {
        let count = client.prompts.len();
        self.lanes(count as u64 * per_request(self.args)).await?;
        let mut expected = Vec::with_capacity(count);
        for number in 0..count {
            self.progress.count("single runs", number as u64, count as u64);
            let answer = client.ask(number, &format!("alone-{number}")).await;
            let answer = answer.map_err(|fault| Error::Runtime(format!("a single run failed: {fault}")))?;
            expected.push(answer.text);
        }
        self.progress.idle();
        Ok(expected)
    }

    /// One load, measured, with lanes ready before.
    async fn run(&self, client: &Arc<Client>, load: Load, first: Option<&Run>) -> Result<Run, Error> {
        let args = self.args;
        let count = args.seconds.map_or_else(|| u64::from(requests(args)), |_| ENDLESS / per_request(args));
        let before = self.lanes(count * per_request(args)).await?;
        let sampler = self.backstage.as_ref().map(|here| Sampler::start(&here.processes));
        let (name, length) = match load {
            Load::Closed(n) => (format!("{n} at a time"), length(args)),
            Load::Open(rate) => (format!("{rate} a second"), length(args)),
        };
        self.progress.busy(format!("measuring: {name}"));
        let measured = load::run(client, load, length, &name, args.seed).await;
        self.progress.idle();
        let memory = sampler.map(|sampler| sampler.seen());
        let after = match (&self.backstage, &before) {
            (Some(here), Some(_)) => here.runtime.lanes().await?,
            _ => None,
        };
        let lanes = before.zip(after).map(|(before, after)| Lanes {
            ready_before: before.ready,
            used: after.used.saturating_sub(before.used),
            ready_after: after.ready,
        });
        Ok(self.summary(load, &measured, first, lanes, memory))
    }

    fn summary(
        &self,
        load: Load,
        measured: &Measured,
        first: Option<&Run>,
        lanes: Option<Lanes>,
        memory: Option<Vec<Resident>>,
    ) -> Run {
        let summary = Summary::of(measured, u64::from(self.args.prompt_tokens));
        let per_second = summary.output_tokens_per_second;
        let ratio = match (load, first) {
            (Load::Closed(_), Some(first)) if first.summary.output_tokens_per_second > 0.0 => {
                Some(per_second / first.summary.output_tokens_per_second)
            }
            (Load::Closed(_), None) if self.args.sweep.len() > 1 => Some(1.0),
            _ => None,
        };
        Run { load, summary, throughput_ratio: ratio, lanes, memory }
    }

    /// Waits for lanes, where any are used; the pool as it is then.
    async fn lanes(&self, wanted: u64) -> Result<Option<proto::v1::Lanes>, Error> {
        match &self.backstage {
            Some(here) if here.protocol.masks() => pool::ready(&here.runtime, wanted, self.progress).await.map(Some),
            _ => Ok(None),
        }
    }
}

fn requests(args: &ServeArgs) -> u32 {
    args.requests.unwrap_or(DEFAULT_REQUESTS)
}

fn length(args: &ServeArgs) -> Length {
    match args.seconds {
        Some(seconds) => Length::Time(Duration::from_secs(seconds.into())),
        None => Length::Requests(requests(args) as usize),
    }
}

/// What is run, one after the other.
fn loads(args: &ServeArgs) -> Vec<Load> {
    match (args.rate, args.concurrency) {
        (Some(rate), _) => vec![Load::Open(rate.into())],
        (None, None) if !args.sweep.is_empty() => args.sweep.iter().map(|n| Load::Closed(*n as usize)).collect(),
        (None, concurrency) => vec![Load::Closed(concurrency.unwrap_or(1) as usize)],
    }
}

/// Lanes that one request takes at most.
fn per_request(args: &ServeArgs) -> u64 {
    let prompt = if args.local.policy.delegates_prompts() { u64::from(args.prompt_tokens) } else { 0 };
    prompt + u64::from(args.max_tokens)
}

/// Lanes that one load takes at most.
fn wanted(args: &ServeArgs) -> u64 {
    args.seconds.map_or_else(|| u64::from(requests(args)) * per_request(args), |_| ENDLESS)
}

/// The first failure among requests that must not fail.
fn failing(measured: &Measured) -> Result<(), Error> {
    let fault = measured.outcomes.iter().find_map(|outcome| outcome.result.as_ref().err());
    fault.map_or(Ok(()), |fault| Err(Error::Runtime(format!("a request to warm up failed: {fault}"))))
}

impl Summary {
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    pub(super) fn of(measured: &Measured, prompt_tokens: u64) -> Self {
        let seconds = measured.seconds.max(f64::MIN_POSITIVE);
        let answers = || measured.outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
        let mut errors = std::collections::BTreeMap::new();
        let mut example = None;
        for fault in measured.outcomes.iter().filter_map(|outcome| outcome.result.as_ref().err()) {
            *errors.entry(fault.kind()).or_insert(0) += 1;
            example.get_or_insert_with(|| fault.to_string());
        }
        let (answered, tokens) = (answers().count(), answers().map(|answer| answer.tokens).sum::<u64>());
        let per_token =
            answers().filter(|a| a.tokens > 1).filter_map(|a| Some((a.end - a.first?) / (a.tokens - 1) as f64));
        Self {
            requests: measured.outcomes.len(),
            answered,
            errors,
            first_error: example,
            seconds,
            prompt_tokens: prompt_tokens * answered as u64,
            output_tokens: tokens,
            output_tokens_per_second: tokens as f64 / seconds,
            requests_per_second: answered as f64 / seconds,
            ttft_ms: Distribution::of(answers().filter_map(|answer| answer.first)),
            inter_token_ms: Distribution::of(answers().flat_map(|answer| answer.gaps.iter().copied())),
            per_token_ms: Distribution::of(per_token),
            end_to_end_ms: Distribution::of(answers().map(|answer| answer.end)),
            each: measured.outcomes.iter().map(output::Each::of).collect(),
            gaps: answers().flat_map(|answer| answer.gaps.iter().copied()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::bench::load::{Outcome, Streamed};
    use crate::cli::{BenchCommand, Cli, Command};

    fn args(flags: &str) -> ServeArgs {
        let words = ["bifrost", "bench", "serve"].into_iter().chain(flags.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Bench(BenchCommand::Serve(args)) => args,
            _ => panic!("serve is serve"),
        }
    }

    #[test]
    fn loads_are_what_was_asked_for() {
        assert_eq!(loads(&args("")), [Load::Closed(1)]);
        assert_eq!(loads(&args("--concurrency 4")), [Load::Closed(4)]);
        assert_eq!(loads(&args("--rate 2.5")), [Load::Open(2.5)]);
        assert_eq!(loads(&args("--sweep 1,2,16")), [1, 2, 16].map(Load::Closed));
        assert_eq!(wanted(&args("--requests 4 --max-tokens 8")), 32);
        assert_eq!(wanted(&args("--requests 4 --max-tokens 8 --prompt-tokens 2 --policy hybrid_unified")), 40);
        assert_eq!(pool::to_keep(wanted(&args("--seconds 4"))), 2048);
    }

    #[test]
    fn a_summary_counts_answers_and_errors_by_kind() {
        let streamed = Streamed { text: "ab".into(), first: Some(10.0), gaps: vec![5.0, 7.0], end: 22.0, tokens: 3 };
        let outcomes = vec![
            Outcome { began: 0.0, result: Ok(streamed) },
            Outcome { began: 0.1, result: Err(Fault::Status(503, "busy".into())) },
            Outcome { began: 0.2, result: Err(Fault::Status(503, "busy".into())) },
        ];
        let summary = Summary::of(&Measured { outcomes, seconds: 2.0 }, 4);
        assert_eq!((summary.requests, summary.answered, summary.errors["status_503"]), (3, 1, 2));
        assert_eq!((summary.output_tokens_per_second, summary.prompt_tokens), (1.5, 4));
        assert_eq!((summary.inter_token_ms.mean, summary.per_token_ms.p50), (Some(6.0), Some(6.0)));
        assert_eq!(summary.first_error.as_deref(), Some("status 503: busy"));
    }
}
