//! `bifrost generate`: one request, to a running runtime or to daemons started for it.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use proto::v1;

use crate::cli::{GenerateArgs, Protocol};
use crate::demo::{announce, echo};
use crate::deployment::{Deployment, Setup, installed};
use crate::inference::{Completion, Runtime, request};
use crate::lanes::fill;
use crate::progress::Progress;
use crate::report::{Report, print};
use crate::stop::Stop;
use crate::trust::{Clock, Trust};
use crate::way::{MutualTls, Way};
use crate::{Error, model};

/// A prompt beyond this is refused here; a runtime would refuse it as longer than any context.
const PROMPT_LIMIT: u64 = 3 << 20;
/// What a shape with random weights is asked.
const SYNTHETIC_PROMPT: &str = "The capital of France is";

/// Runs the request and prints text and figures, or one JSON object.
///
/// # Errors
/// An unreadable or oversized prompt, whatever keeps the daemons from starting, the runtime's refusals.
pub async fn run<W: Trust>(
    args: &GenerateArgs,
    progress: &Arc<Progress>,
    stop: &Stop,
    clock: &Clock,
) -> Result<ExitCode, Error> {
    let files = MutualTls { ca: args.ca.as_ref(), cert: args.cert.as_ref(), key: args.key.as_ref() };
    let way = Way::<W>::of("--endpoint", args.endpoint.as_deref(), &files, &args.attested, clock)?;
    if let Some(shape) = &args.synthetic {
        model::synthetic(shape)?;
    }
    if matches!(way, Way::Here) {
        installed()?;
    }
    let prompt = prompt(args).await?;
    let mut deployment = None;
    let (mut connection, mut attestation) = (None, None);
    match &way {
        Way::MutualTls(address) => connection = Some(Runtime::connect(address).await?),
        Way::Attested(attested) => {
            progress.busy(format!("asking {} for evidence", attested.endpoint()));
            connection = Some(attested.runtime().await?);
            attestation = Some(W::LABEL);
            progress.idle();
        }
        Way::Here => {}
    }
    let (connection, description) = match connection {
        Some(connection) => {
            let description = connection.describe().await?;
            (connection, description)
        }
        None => {
            let started = start(args, progress, stop).await?;
            let parts = (started.connection().clone(), started.description().clone());
            deployment = Some(started);
            parts
        }
    };
    let asked = ask(args, &prompt, &connection, &description, progress);
    let answer = match &mut deployment {
        Some(deployment) => deployment.watch(asked).await,
        None => asked.await,
    };
    progress.idle();
    if !args.json {
        print("\n")?;
    }
    let answer = answer?;
    let timing = answer.timing;
    let description = v1::DescribeResponse { lanes: connection.lanes().await?, ..description };
    let mut report = Report::new(answer, &description, None);
    report.attestation = attestation;
    if args.json {
        print(&format!("{}\n", report.to_json()))?;
    } else {
        progress.say(&report.to_table(&timing, &description, None));
    }
    Ok(ExitCode::SUCCESS)
}

async fn start(args: &GenerateArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<Deployment, Error> {
    let source = match (&args.synthetic, &args.model) {
        (Some(shape), _) => format!("{}{shape}", model::SYNTHETIC),
        (None, Some(model)) => model.clone(),
        (None, None) => model::DEFAULT.into(),
    };
    let protocol = args.local.policy.protocol(args.protocol.unwrap_or(Protocol::Masked));
    let source = model::resolve_async(&source, progress, stop).await?;
    let begin = Instant::now();
    let setup = Setup { model: source, protocol, daemons: args.local.clone() };
    let mut deployment = Deployment::start(&setup, progress).await?;
    announce(&deployment, protocol, begin, progress);
    if protocol == Protocol::Masked {
        fill(&mut deployment, args.max_tokens, progress).await?;
    }
    Ok(deployment)
}

async fn ask(
    args: &GenerateArgs,
    prompt: &str,
    connection: &Runtime,
    description: &v1::DescribeResponse,
    progress: &Progress,
) -> Result<Completion, Error> {
    let mut request = request(prompt, description, args.raw);
    request.max_tokens = args.max_tokens;
    request.sampling = Some(args.sampling.into());
    // A shape with random weights is there to be timed, so it does not stop early.
    request.ignore_eos = args.synthetic.is_some();
    if let Some(protocol) = args.protocol {
        request.set_protocol(protocol.into());
    }
    progress.busy("the prompt on its way through the layers");
    connection.generate(request, |text| echo(text, args.json, progress)).await
}

/// The prompt from its flag, its file, or standard input; not empty, not absurdly long.
async fn prompt(args: &GenerateArgs) -> Result<String, Error> {
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(prompt), _) => prompt.clone(),
        (None, Some(path)) if path.as_os_str() != "-" => read(path)?,
        (None, None) if args.synthetic.is_some() => SYNTHETIC_PROMPT.into(),
        _ => {
            if std::io::stdin().is_terminal() {
                eprintln!("reading the prompt from standard input; end it with Ctrl-D");
            }
            tokio::task::spawn_blocking(|| bounded(std::io::stdin().lock(), Path::new("standard input")))
                .await
                .map_err(|error| Error::Platform(format!("standard input: {error}")))??
        }
    };
    if text.is_empty() {
        return Err(Error::Usage("the prompt is empty".into()));
    }
    Ok(text)
}

fn read(path: &Path) -> Result<String, Error> {
    bounded(std::fs::File::open(path).map_err(|error| Error::file(path, error))?, path)
}

fn bounded(from: impl Read, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    from.take(PROMPT_LIMIT + 1).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    if bytes.len() as u64 > PROMPT_LIMIT {
        return Err(Error::file(path, format!("the prompt is longer than {PROMPT_LIMIT} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Error::file(path, "the prompt is not UTF-8"))
}
