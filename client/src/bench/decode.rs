//! `bifrost bench decode`: policies, protocols and lengths of prompts against each other, one request at a time.

use std::process::ExitCode;
use std::sync::Arc;

use proto::v1;
use proto::v1::generate_request::Input;
use serde::Serialize;

use super::figures::median;
use super::output::{figure, json, table};
use super::target::{daemons, source};
use super::{plot, pool, text};
use crate::Error;
use crate::cli::{DecodeArgs, LocalArgs, Policy, Protocol};
use crate::deployment::Deployment;
use crate::inference::{Completion, Runtime};
use crate::progress::Progress;
use crate::report::print;
use crate::stop::Stop;

/// What is compared; the first one is what the others are compared with.
const POLICIES: [Policy; 3] = [Policy::CpuTee, Policy::HybridUnified, Policy::HybridPdSplit];
/// The time to the first token of `hybrid_pd_split`, of `cpu_tee`'s and one delegated step together.
const TARGET: f64 = 1.3;

/// The object that `--json` prints. Its keys are a contract; times are medians in milliseconds.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    model: String,
    weights: String,
    max_tokens: u32,
    repeat: u32,
    /// Whether all answers to a prompt were the same tokens.
    identical: bool,
    rows: Vec<Row>,
    splits: Vec<Split>,
}

/// One kind of request.
#[derive(Serialize)]
struct Row {
    protocol: &'static str,
    policy: &'static str,
    prompt_tokens: u32,
    ttft_ms: f64,
    ms_per_token: f64,
    /// Of `ms_per_token`, with the same daemons.
    ratio_to_cpu_tee: Option<f64>,
    /// The first token and all others.
    total_ms: f64,
    /// Of a decode step.
    bytes_up_per_token: u64,
    bytes_down_per_token: u64,
    /// Of one answer.
    masked_steps: u32,
    direct_steps: u32,
}

/// What splitting prompt and answer brings.
#[derive(Serialize)]
struct Split {
    protocol: &'static str,
    prompt_tokens: u32,
    /// `ttft(pd_split) / (ttft(cpu_tee) + one delegated step)`.
    ttft_ratio: f64,
    target: f64,
    /// `ttft(unified) / ttft(pd_split)`.
    ttft_gain_over_unified: f64,
    /// Of the whole answer.
    total_gain_over_unified: f64,
}

/// Runs the bench and prints its figures.
///
/// # Errors
/// Whatever keeps the daemons from starting or answering; answers that differ.
pub async fn run(args: &DecodeArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    plot::check(args.output.plot.as_deref())?;
    if args.protocols.contains(&Protocol::Local) {
        return Err(Error::Usage("--protocols local: that is what cpu_tee is, which is measured in any case".into()));
    }
    let source = source(args.model.as_ref(), args.synthetic.as_ref(), progress, stop).await?;
    let mut bench = Bench { args, progress, prompts: Vec::new(), expected: Vec::new(), rows: Vec::new(), salt: 0 };
    let mut served = v1::DescribeResponse::default();
    for protocol in &args.protocols {
        let lanes = args.local.lanes.or_else(|| protocol.masks().then(|| pool::to_keep(wanted(args))));
        let local = LocalArgs { lanes, ..args.local.clone() };
        let mut deployment = daemons(&source, *protocol, local, progress).await?;
        served = deployment.description().clone();
        bench.protocol(*protocol, &mut deployment).await?;
    }
    let splits = splits(&bench.rows);
    let report = Report {
        bench: "decode",
        model: served.model,
        weights: served.weights,
        max_tokens: args.max_tokens,
        repeat: args.repeat,
        identical: true,
        rows: bench.rows,
        splits,
    };
    if args.output.json {
        print(&format!("{}\n", json(&report)))?;
    } else {
        print(&format!("{}\n{}\n", report.rows_table(), report.splits_table()))?;
        print("All answers to a prompt are the same tokens, whatever the policy and the protocol.\n")?;
    }
    if let Some(path) = &args.output.plot {
        plot::bars(&report.bars(), path)?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    args: &'a DecodeArgs,
    progress: &'a Progress,
    prompts: Vec<Vec<u32>>,
    /// The first answer to each prompt.
    expected: Vec<Vec<u32>>,
    rows: Vec<Row>,
    /// Makes every request another tenant's neighbour: none finds its prompt computed already.
    salt: u64,
}

impl Bench<'_> {
    async fn protocol(&mut self, protocol: Protocol, deployment: &mut Deployment) -> Result<(), Error> {
        let runtime = deployment.connection().clone();
        let context = deployment.description().context_length;
        if self.prompts.is_empty() {
            self.prompts = deployment.watch(prompts(&runtime, self.args, context)).await?;
        }
        for number in 0..self.prompts.len() {
            let mut reference = None;
            for policy in POLICIES {
                let row = deployment.watch(self.row(&runtime, protocol, policy, number)).await?;
                let ratio = row.ms_per_token / *reference.get_or_insert(row.ms_per_token);
                self.rows.push(Row { ratio_to_cpu_tee: ratio.is_finite().then_some(ratio), ..row });
            }
        }
        Ok(())
    }

    /// The medians over the requests of one kind, after one that is not measured.
    async fn row(
        &mut self,
        runtime: &Runtime,
        protocol: Protocol,
        policy: Policy,
        number: usize,
    ) -> Result<Row, Error> {
        let mut answers = Vec::new();
        for _ in 0..=self.args.repeat {
            if protocol.masks() {
                pool::ready(runtime, per_request(self.args, number), self.progress).await?;
            }
            self.progress.busy(format!("{}, {}, prompt {number}", protocol.name(), policy.name()));
            let answer = self.ask(runtime, protocol, policy, number).await?;
            self.progress.idle();
            self.compare(&answer, protocol, policy, number)?;
            answers.push(answer);
        }
        answers.remove(0);
        let of = |pick: fn(&v1::Timing) -> f64| median(answers.iter().map(|a| pick(&a.timing))).unwrap_or_default();
        let (ttft_ms, ms_per_token) = (of(|timing| timing.ttft_ms), of(|timing| timing.decode_ms_per_token));
        let last = answers.last().map(|answer| (answer.timing, answer.masked_steps, answer.direct_steps));
        let (timing, masked_steps, direct_steps) = last.unwrap_or_default();
        Ok(Row {
            protocol: protocol.name(),
            policy: policy.name(),
            prompt_tokens: self.args.prompt_tokens.get(number).copied().unwrap_or_default(),
            ttft_ms,
            ms_per_token,
            ratio_to_cpu_tee: None,
            total_ms: ttft_ms + ms_per_token * f64::from(self.args.max_tokens - 1),
            bytes_up_per_token: timing.bytes_up_per_token,
            bytes_down_per_token: timing.bytes_down_per_token,
            masked_steps,
            direct_steps,
        })
    }

    async fn ask(
        &mut self,
        runtime: &Runtime,
        protocol: Protocol,
        policy: Policy,
        number: usize,
    ) -> Result<Completion, Error> {
        self.salt += 1;
        let ids = self.prompts.get(number).cloned().unwrap_or_default();
        let mut request = v1::GenerateRequest {
            input: Some(Input::TokenIds(v1::TokenIds { ids })),
            max_tokens: self.args.max_tokens,
            ignore_eos: true,
            cache_salt: self.salt.to_string(),
            ..Default::default()
        };
        request.set_protocol(protocol.into());
        request.set_policy(policy.into());
        runtime.generate(request, |_| {}).await
    }

    /// The first answer to a prompt is kept, the others must be the same.
    fn compare(&mut self, answer: &Completion, protocol: Protocol, policy: Policy, number: usize) -> Result<(), Error> {
        let Some(expected) = self.expected.get(number) else {
            self.expected.push(answer.token_ids.clone());
            return Ok(());
        };
        if *expected == answer.token_ids {
            return Ok(());
        }
        let same = expected.iter().zip(&answer.token_ids).take_while(|(a, b)| a == b).count();
        Err(Error::Runtime(format!(
            "token {} of the answer to prompt {number} differs with {} and {}; this is a bug, never noise",
            same + 1,
            policy.name(),
            protocol.name()
        )))
    }
}

/// A prompt of each length.
async fn prompts(runtime: &Runtime, args: &DecodeArgs, context: u32) -> Result<Vec<Vec<u32>>, Error> {
    let longest = args.prompt_tokens.iter().copied().max().unwrap_or(0);
    if u64::from(longest) + u64::from(args.max_tokens) > context.into() {
        return Err(Error::Usage(format!(
            "--prompt-tokens {longest} and --max-tokens {} do not fit the context of {context} tokens",
            args.max_tokens
        )));
    }
    let asked = v1::TokenizeRequest { input: Some(v1::tokenize_request::Input::Prompt(text::TEXT.into())) };
    let ids = runtime.client().tokenize(asked).await?.into_inner().token_ids.unwrap_or_default().ids;
    if ids.is_empty() {
        return Err(Error::Runtime("the runtime told no tokens".into()));
    }
    let of = |length: &u32| ids.iter().copied().cycle().take(*length as usize).collect();
    Ok(args.prompt_tokens.iter().map(of).collect())
}

/// Lanes that a request with prompt `number` takes at most.
fn per_request(args: &DecodeArgs, number: usize) -> u64 {
    u64::from(args.prompt_tokens.get(number).copied().unwrap_or(0)) + u64::from(args.max_tokens)
}

/// Lanes that all requests of one protocol take at most.
fn wanted(args: &DecodeArgs) -> u64 {
    let requests = u64::from(args.repeat) + 1;
    // Two policies delegate, one of them the prompt too.
    (0..args.prompt_tokens.len()).map(|n| requests * (per_request(args, n) + u64::from(args.max_tokens))).sum()
}

fn splits(rows: &[Row]) -> Vec<Split> {
    let find = |row: &Row, policy: Policy| {
        let same = |other: &&Row| (other.protocol, other.prompt_tokens) == (row.protocol, row.prompt_tokens);
        rows.iter().filter(same).find(|other| other.policy == policy.name())
    };
    let split = |split: &Row| {
        let (tee, unified) = (find(split, Policy::CpuTee)?, find(split, Policy::HybridUnified)?);
        Some(Split {
            protocol: split.protocol,
            prompt_tokens: split.prompt_tokens,
            ttft_ratio: split.ttft_ms / (tee.ttft_ms + split.ms_per_token),
            target: TARGET,
            ttft_gain_over_unified: unified.ttft_ms / split.ttft_ms,
            total_gain_over_unified: unified.total_ms / split.total_ms,
        })
    };
    rows.iter().filter(|row| row.policy == Policy::HybridPdSplit.name()).filter_map(split).collect()
}

impl Report {
    fn rows_table(&self) -> comfy_table::Table {
        let title = format!("{} ({})", self.model, self.weights);
        let mut table =
            table(&[&title, "policy", "prompt", "TTFT, ms", "ms a token", "ratio", "KB up", "KB down", "masked"]);
        for row in &self.rows {
            table.add_row([
                row.protocol.to_owned(),
                row.policy.to_owned(),
                row.prompt_tokens.to_string(),
                figure(Some(row.ttft_ms)),
                figure(Some(row.ms_per_token)),
                row.ratio_to_cpu_tee.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2} x")),
                kilobytes(row.bytes_up_per_token),
                kilobytes(row.bytes_down_per_token),
                format!("{} / {}", row.masked_steps, row.masked_steps + row.direct_steps),
            ]);
        }
        table
    }

    fn splits_table(&self) -> comfy_table::Table {
        let target = format!("TTFT / (cpu_tee + step), target {TARGET}");
        let mut table = table(&["hybrid_pd_split", "prompt", &target, "gain over unified, TTFT", "whole answer"]);
        for split in &self.splits {
            table.add_row([
                split.protocol.to_owned(),
                split.prompt_tokens.to_string(),
                format!("{:.2}{}", split.ttft_ratio, if split.ttft_ratio > TARGET { " missed" } else { "" }),
                format!("{:.2} x", split.ttft_gain_over_unified),
                format!("{:.2} x", split.total_gain_over_unified),
            ]);
        }
        table
    }

    fn bars(&self) -> [plot::Bars; 2] {
        let of = |title: &str, pick: fn(&Row) -> f64| {
            let groups = self.rows.chunks(POLICIES.len()).filter_map(|rows| {
                let label = rows.first().map(|row| format!("{}, prompt {}", row.protocol, row.prompt_tokens))?;
                Some((label, rows.iter().map(|row| Some(pick(row))).collect()))
            });
            plot::Bars { title: title.into(), names: POLICIES.map(Policy::name).to_vec(), groups: groups.collect() }
        };
        [of("Time to first token", |row| row.ttft_ms), of("Time per token", |row| row.ms_per_token)]
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn kilobytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: Policy, ttft_ms: f64, ms_per_token: f64) -> Row {
        Row {
            protocol: "masked",
            policy: policy.name(),
            prompt_tokens: 64,
            ttft_ms,
            ms_per_token,
            ratio_to_cpu_tee: Some(1.0),
            total_ms: ttft_ms + ms_per_token,
            bytes_up_per_token: 1500,
            bytes_down_per_token: 0,
            masked_steps: 1,
            direct_steps: 0,
        }
    }

    fn report() -> Report {
        let rows = vec![
            row(Policy::CpuTee, 100.0, 10.0),
            row(Policy::HybridUnified, 600.0, 50.0),
            row(Policy::HybridPdSplit, 120.0, 50.0),
        ];
        let splits = splits(&rows);
        let (model, weights) = ("tiny".into(), "w8".into());
        Report { bench: "decode", model, weights, max_tokens: 2, repeat: 1, identical: true, rows, splits }
    }

    #[test]
    fn splits_are_compared_with_both_others() {
        let report = report();
        let [split] = &report.splits[..] else { panic!("one protocol, one length") };
        assert!((split.ttft_ratio - 0.8).abs() < 1e-9 && (split.ttft_gain_over_unified - 5.0).abs() < 1e-9);
        assert!((split.total_gain_over_unified - 650.0 / 170.0).abs() < 1e-9);
        assert!(report.splits_table().to_string().contains("5.00 x"));
        assert!(report.rows_table().to_string().contains("hybrid_unified"));
        assert_eq!(report.bars()[0].groups[0].1, [Some(100.0), Some(600.0), Some(120.0)]);
    }

    #[test]
    fn json_has_its_keys() {
        let value: serde_json::Value = serde_json::from_str(&json(&report())).unwrap();
        for at in ["/bench", "/identical", "/rows/2/ttft_ms", "/rows/0/bytes_up_per_token", "/splits/0/target"] {
            assert!(value.pointer(at).is_some_and(|v| !v.is_null()), "{at}");
        }
    }
}
