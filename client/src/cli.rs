//! The command line, parsed and range-checked before anything starts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use proto::v1;

use crate::model::DEFAULT;

mod bench;
mod model;
mod pki;
mod trust;
mod values;

pub use bench::{BenchCommand, DecodeArgs, OpsArgs, OutputArgs, ServeArgs};
pub use model::{FetchArgs, InspectArgs, ModelCommand, PlanArgs};
pub use pki::{InitArgs, IssueArgs, LinkRole, PkiCommand, RequestArgs, ShowArgs};
pub use trust::{
    AttestedArgs, CollateralCommand, CollateralFetchArgs, CollateralFileArgs, ExplainArgs, KeygenArgs, ReleaseKeyArgs,
    TrustArgs, VerifyArgs,
};
pub use values::{Policy, Protocol, Residency, Weights};
use values::{number, size};

/// Encrypted delegation of LLM inference: the prompt stays in the enclave, the matrices run elsewhere.
#[derive(Parser)]
#[command(name = "bifrost", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Start both daemons on this machine, answer a prompt encrypted, compare with the local path, show figures
    Demo(DemoArgs),
    /// Generate text with a running runtime, or with daemons started for this one request
    Generate(GenerateArgs),
    /// Serve the OpenAI API over HTTP on the user's side, in front of a runtime
    Proxy(ProxyArgs),
    /// Check what a runtime proves against a policy, and show every finding
    Verify(VerifyArgs),
    /// Show which component of a platform is behind Intel's updates, and what raises it
    ExplainTcb(ExplainArgs),
    /// Intel's statements about platforms, for machines without a way to Intel
    #[command(subcommand)]
    Collateral(CollateralCommand),
    /// Make a tenant's key
    Keygen(KeygenArgs),
    /// Verify a runtime and hand it a tenant's key, on one connection
    ReleaseKey(ReleaseKeyArgs),
    /// Watch running daemons: requests, tokens, lanes, evaluators, alarms
    Top(TopArgs),
    /// Measure: load on an endpoint, protocols and policies against each other
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Make certificates for the link between runtime and evaluator, offline
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Fetch and inspect models
    #[command(subcommand)]
    Model(ModelCommand),
}

/// The daemons that a command starts.
#[derive(Args, Clone)]
pub struct LocalArgs {
    /// Precision of the weights
    #[arg(long, value_enum, default_value = "w8")]
    pub weights: Weights,
    /// Threads of each daemon [default: as many as the machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Where prompts and answers are computed
    #[arg(long, value_enum, default_value = "hybrid_pd_split")]
    pub policy: Policy,
    /// How the evaluator holds the weights of direct; with masked and auto they are int8 in any case
    #[arg(long, value_enum, default_value = "auto")]
    pub residency: Residency,
    /// Memory budget of the evaluator, bytes or e.g. 8GiB [default: the evaluator's own]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub evaluator_memory: Option<u64>,
    /// Lanes the runtime keeps ready for masked delegation, one for each token that goes through the evaluator; 0 is as
    /// many as its memory for them allows [default: the runtime's own; in a demo, 64 or what its request may take; in a
    /// proxy, 512; in a bench, what it takes, up to 2048]
    #[arg(long, value_name = "N")]
    pub lanes: Option<u32>,
    /// Memory of the runtime for lanes, bytes or e.g. 2GiB [default: the runtime's own]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub pool_memory: Option<u64>,
    /// Pass on what the daemons write to standard error
    #[arg(short, long)]
    pub verbose: bool,
}

/// `bifrost demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue
    #[arg(long, value_name = "PATH|NAME", default_value = DEFAULT)]
    pub model: String,
    /// What to ask; sent as a chat message when the model has a chat template
    #[arg(long, value_name = "TEXT", default_value = "What is the capital of France?")]
    pub prompt: String,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// How linear layers are executed
    #[arg(long, value_enum, default_value = "masked")]
    pub protocol: Protocol,
    /// The daemons.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `bifrost generate`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").args(["endpoint", "model", "synthetic"]))]
pub struct GenerateArgs {
    /// A running runtime: attested://HOST:PORT with --attestation-policy and --tenant-key, or https://HOST:PORT with
    /// --ca, --cert and --key
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Certificate of the authority that signed the runtime's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "endpoint")]
    pub ca: Option<PathBuf>,
    /// This client's certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["endpoint", "key"])]
    pub cert: Option<PathBuf>,
    /// The key of this client's certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["endpoint", "cert"])]
    pub key: Option<PathBuf>,
    /// How an attested:// runtime is judged.
    #[command(flatten)]
    pub attested: AttestedArgs,
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue, served by daemons started here
    #[arg(long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A shape with seeded random weights, for timing: gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1.5b, qwen3-0.6b, qwen3-8b,
    /// llama3-8b, llama-1b, smollm2-135m, llama-tiny; NAME@LAYERS has its first layers alone and 4096 tokens
    #[arg(long, value_name = "NAME")]
    pub synthetic: Option<String>,
    /// The prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// A file with the prompt; `-` is standard input, which is also read when no prompt is given at all
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// How linear layers are executed [default: masked, or the running runtime's own]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// The daemons.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Send the prompt as it is, even when the model has a chat template
    #[arg(long)]
    pub raw: bool,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// How tokens are chosen; greedy unless a temperature is given.
#[derive(Args, Clone, Copy)]
pub struct SamplingArgs {
    /// 0 is greedy [0 to 2]
    #[arg(long, value_name = "T", value_parser = |text: &str| number(text, "0 to 2", |x| (0.0..=2.0).contains(&x)))]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens with this probability [above 0 to 1]
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, "above 0, up to 1", |x| x > 0.0 && x <= 1.0))]
    pub top_p: Option<f32>,
    /// Keep tokens with at least this share of the best one's probability [0 to below 1]
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, "0 to below 1", |x| (0.0..1.0).contains(&x)))]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens already seen [above 0 to 10]
    #[arg(long, value_name = "R", value_parser = |text: &str| number(text, "above 0, up to 10", |x| x > 0.0 && x <= 10.0))]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same tokens
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl From<SamplingArgs> for v1::Sampling {
    fn from(args: SamplingArgs) -> Self {
        Self {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repetition_penalty,
            seed: args.seed,
            ..Self::default()
        }
    }
}

/// `bifrost proxy`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("behind").args(["runtime", "model", "synthetic"]))]
pub struct ProxyArgs {
    /// A running runtime: attested://HOST:PORT with --attestation-policy and --tenant-key, or https://HOST:PORT with
    /// --ca, --cert and --key
    #[arg(long, value_name = "URL")]
    pub runtime: Option<String>,
    /// Certificate of the authority that signed the runtime's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "runtime")]
    pub ca: Option<PathBuf>,
    /// This proxy's certificate towards the runtime (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["runtime", "key"])]
    pub cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["runtime", "cert"])]
    pub key: Option<PathBuf>,
    /// How an attested:// runtime is judged.
    #[command(flatten)]
    pub attested: AttestedArgs,
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue, served by daemons started here
    #[arg(long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A shape with seeded random weights, served by daemons started here
    #[arg(long, value_name = "NAME")]
    pub synthetic: Option<String>,
    /// Where HTTP is served, ADDRESS:PORT; port 0 takes a free one [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Settings: API keys, limits, TLS (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve without TLS on an address that other machines reach: prompts and keys cross the network readable
    #[arg(long)]
    pub danger_plaintext: bool,
    /// Write the port that is listened on into this file
    #[arg(long, value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// End when standard input is closed
    #[arg(long)]
    pub exit_with_parent: bool,
    /// How linear layers are executed [default: auto, or the running runtime's own]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// The daemons.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `bifrost top`.
#[derive(Args)]
pub struct TopArgs {
    /// Metrics of the runtime
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464/metrics")]
    pub runtime: String,
    /// Metrics of an evaluator; may be given several times
    #[arg(long, value_name = "URL")]
    pub evaluator: Vec<String>,
    /// Metrics of a proxy
    #[arg(long, value_name = "URL")]
    pub proxy: Option<String>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// Print the figures as text after two looks, and leave
    #[arg(long)]
    pub once: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn masked_is_the_default_and_every_protocol_has_its_name() {
        let parsed = |args: &[&str]| Cli::try_parse_from([&["bifrost"], args].concat()).unwrap().command;
        let Command::Demo(demo) = parsed(&["demo"]) else { panic!("demo is demo") };
        assert_eq!((demo.protocol, demo.local.lanes, demo.local.pool_memory), (Protocol::Masked, None, None));
        for name in ["local", "direct", "masked", "auto"] {
            let Command::Demo(demo) = parsed(&["demo", "--protocol", name]) else { panic!("demo is demo") };
            assert_eq!(demo.protocol.name(), name);
            assert_eq!(Protocol::of(demo.protocol.into()), Some(demo.protocol));
        }
    }

    #[test]
    fn sampling_values_out_of_range_are_refused() {
        let with = |flag: &str, value: &str| Cli::try_parse_from(["bifrost", "generate", flag, value]).map(|_| ());
        for (flag, good, bad) in [
            ("--temperature", ["0", "2"], ["-0.1", "2.1"]),
            ("--top-p", ["0.001", "1"], ["0", "1.01"]),
            ("--min-p", ["0", "0.99"], ["-1", "1"]),
            ("--repetition-penalty", ["0.1", "10"], ["0", "10.5"]),
            ("--top-k", ["1", "50"], ["0", "-1"]),
            ("--max-tokens", ["1", "4096"], ["0", "x"]),
            ("--threads", ["1", "64"], ["0", "1025"]),
            ("--lanes", ["0", "2048"], ["-1", "4294967296"]),
            ("--pool-memory", ["4096", "2GiB"], ["0", "2 gigs"]),
            ("--evaluator-memory", ["1", "500 MB"], ["0KiB", "17179869184 GiB"]),
        ] {
            for value in good {
                assert!(with(flag, value).is_ok(), "{flag} {value}");
            }
            for value in bad.into_iter().chain(["NaN", "inf"]) {
                let error = with(flag, value).unwrap_err().to_string();
                assert!(error.contains(flag) || value.starts_with('-'), "{flag} {value}: {error}");
            }
        }
    }
}
