//! `bifrost demo`: the whole thing on one machine, and the proof that encryption changes no token.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use proto::v1;

use crate::cli::{DemoArgs, LocalArgs, Protocol};
use crate::deployment::{Deployment, EVALUATOR, RUNTIME, Setup, installed};
use crate::inference::{Completion, request};
use crate::lanes::{fill, of_a_demo};
use crate::progress::Progress;
use crate::report::{Report, print, printable};
use crate::stop::Stop;
use crate::{Error, model};

/// Runs the demo. Everything but the answer and the table goes to standard error; with `--json`, standard output
/// carries the one object.
///
/// # Errors
/// Whatever keeps the daemons from starting or answering.
pub async fn run(args: &DemoArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    // Cheap refusals come before a download.
    if args.prompt.is_empty() {
        return Err(Error::Usage("the prompt is empty".into()));
    }
    installed()?;
    let policy = args.local.policy;
    let protocol = policy.protocol(args.protocol);
    let lanes = args.local.lanes.unwrap_or_else(|| of_a_demo(&args.prompt, args.max_tokens, policy));
    let setup = Setup {
        model: model::resolve_async(&args.model, progress, stop).await?,
        protocol,
        daemons: LocalArgs { lanes: Some(lanes), ..args.local.clone() },
    };
    let begin = Instant::now();
    let mut deployment = Deployment::start(&setup, progress).await?;
    let connection = deployment.connection().clone();
    announce(&deployment, protocol, begin, progress);

    if protocol == Protocol::Masked {
        fill(&mut deployment, args.max_tokens, progress).await?;
    }

    let mut ask = request(&args.prompt, deployment.description(), false);
    ask.max_tokens = args.max_tokens;
    ask.set_protocol(protocol.into());
    if !args.json {
        print(&format!("\n> {}\n\n", args.prompt))?;
    }
    progress.busy("the prompt on its way through the layers");
    let answer = deployment.watch(connection.generate(ask.clone(), |text| echo(text, args.json, progress))).await;
    progress.idle();
    if !args.json {
        print(if answer.is_ok() { "\n\n" } else { "\n" })?;
    }
    let answer = answer?;
    let model = v1::DescribeResponse { lanes: connection.lanes().await?, ..deployment.description().clone() };

    progress.busy("the same prompt on the local path, for comparison");
    ask.set_protocol(v1::Protocol::Local);
    let local = deployment.watch(connection.generate(ask, |_| {})).await?;
    progress.idle();

    let difference = first_difference(&answer, &local);
    let (timing, tokens) = (answer.timing, answer.token_ids.len());
    let report = Report::new(answer, &model, Some(&local));
    if args.json {
        print(&format!("{}\n", report.to_json()))?;
    } else {
        print(&format!("{}\n", report.to_table(&timing, &model, Some(&local.timing))))?;
    }
    match difference {
        None if args.json => Ok(ExitCode::SUCCESS),
        None => {
            print(&format!("All {tokens} tokens are identical to the local path's.\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(position) => Err(Error::Runtime(format!(
            "token {position} differs between {} and local; this is a bug, never noise",
            protocol.name()
        ))),
    }
}

/// Prints a piece of the answer as it comes. A closed pipe is noticed by the next whole print.
pub(crate) fn echo(text: &str, quiet: bool, progress: &Progress) {
    progress.idle();
    if !quiet {
        let _ = print(&printable(text));
    }
}

/// Says what is running and what vouches for it.
pub(crate) fn announce(deployment: &Deployment, protocol: Protocol, begin: Instant, progress: &Progress) {
    let model = deployment.description();
    progress.say(&format!(
        "model        {} ({}, {} layers, {:.1} M parameters), {}",
        model.model,
        model.architecture,
        model.layers,
        millions(model.parameters),
        model.weights
    ));
    match (&model.evaluator, protocol) {
        (Some(evaluator), protocol) if protocol.delegates() => progress.say(&format!(
            "processes    bifrost, {RUNTIME} (keys), {EVALUATOR} (no keys; {}, {}): loopback, mutual TLS, ready in {:.1} s",
            evaluator.backend,
            evaluator.isa,
            begin.elapsed().as_secs_f64()
        )),
        _ => progress.say(&format!(
            "processes    bifrost, {RUNTIME}: loopback, mutual TLS, ready in {:.1} s",
            begin.elapsed().as_secs_f64()
        )),
    }
    progress.say(&format!("attestation  {}", attestation(&model.attestation)));
}

/// What backs the claim that the runtime is an enclave.
fn attestation(kind: &str) -> String {
    match kind {
        "local" => {
            "LOCAL: this command started the runtime and trusts it; nothing is protected from this machine's owner"
                .into()
        }
        other => other.to_owned(),
    }
}

/// Position of the first token that differs, counted from 1.
fn first_difference(ours: &Completion, local: &Completion) -> Option<usize> {
    if ours.token_ids == local.token_ids {
        return None;
    }
    let same = ours.token_ids.iter().zip(&local.token_ids).take_while(|(ours, local)| ours == local).count();
    Some(same + 1)
}

#[expect(clippy::cast_precision_loss, reason = "a rounded figure for people")]
fn millions(count: u64) -> f64 {
    count as f64 / 1e6
}
