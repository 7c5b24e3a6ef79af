//! The arguments of `bifrost bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::LocalArgs;
use super::values::{Protocol, number};

/// Subcommands of `bifrost bench`.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Load on an OpenAI endpoint, running or started here: time to first token, between tokens, throughput
    Serve(ServeArgs),
    /// Policies, protocols and lengths of prompts against each other, one request at a time
    Decode(DecodeArgs),
    /// The operations that the enclave computes itself, at a model's sizes
    Ops(OpsArgs),
}

/// `bifrost bench serve`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").args(["url", "model", "synthetic"]))]
#[command(group = clap::ArgGroup::new("load").args(["concurrency", "rate", "sweep"]))]
pub struct ServeArgs {
    /// A running endpoint, http://HOST:PORT; it must serve /v1/completions, /v1/models and /tokenize
    #[arg(long, value_name = "URL", conflicts_with = "protocol")]
    pub url: Option<String>,
    /// The key that the endpoint asks for
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue, served by daemons started here
    #[arg(long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A shape with seeded random weights, served by daemons started here
    #[arg(long, value_name = "NAME")]
    pub synthetic: Option<String>,
    /// How linear layers are executed [default: masked]
    #[arg(long, value_enum)]
    pub protocol: Option<Protocol>,
    /// Closed loop: so many requests at any time [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: Option<u32>,
    /// Open loop: so many requests a second, at the times of a Poisson process
    #[arg(long, value_name = "R", value_parser = |text: &str| number(text, "above 0, up to 10000", |x| x > 0.0 && x <= 1e4))]
    pub rate: Option<f32>,
    /// Closed loop with the same requests at each of these concurrencies, compared with the first
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub sweep: Vec<u32>,
    /// Requests to measure [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub requests: Option<u32>,
    /// Begin requests for so many seconds instead
    #[arg(long, value_name = "S", conflicts_with_all = ["requests", "sweep"], value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub seconds: Option<u32>,
    /// Requests beforehand that are not measured
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub warmup: u32,
    /// Length of a prompt
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: u32,
    /// Length of an answer; it does not end earlier
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_tokens: u32,
    /// Seed of the choice of prompts and of the times of an open loop
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Ask for every prompt alone beforehand; an answer under load that differs is an error
    #[arg(long)]
    pub verify: bool,
    /// The daemons.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Where figures go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `bifrost bench decode`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").args(["model", "synthetic"]))]
pub struct DecodeArgs {
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue [default: smollm2-135m]
    #[arg(long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A shape with seeded random weights; gpt2-124m is the paper's
    #[arg(long, value_name = "NAME")]
    pub synthetic: Option<String>,
    /// The protocols to compare
    #[arg(long, value_enum, value_name = "P,P", value_delimiter = ',', default_values = ["direct", "masked"])]
    pub protocols: Vec<Protocol>,
    /// Lengths of prompts
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values = ["1", "16", "64"],
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: Vec<u32>,
    /// Length of an answer; it does not end earlier
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub max_tokens: u32,
    /// Requests of each kind; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// The daemons; every policy is measured, whatever the policy here.
    #[command(flatten)]
    pub local: LocalArgs,
    /// Where figures go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `bifrost bench ops`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("source").args(["model", "synthetic"]))]
pub struct OpsArgs {
    /// A GGUF file, a Hugging Face directory, or a name of the catalogue [default: smollm2-135m]
    #[arg(long, value_name = "PATH|NAME")]
    pub model: Option<String>,
    /// A shape with seeded random weights
    #[arg(long, value_name = "NAME")]
    pub synthetic: Option<String>,
    /// Where figures go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where the figures of a bench go.
#[derive(Args, Clone)]
pub struct OutputArgs {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Draw the figures into a file (SVG)
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}
