//! The subcommands of `bifrost model`.

use clap::{Args, Subcommand};

use super::values::size;
use super::{Policy, Protocol, Residency, Weights};

/// Subcommands of `bifrost model`.
#[derive(Subcommand)]
pub enum ModelCommand {
    /// Fetch a model of the catalogue into the cache directory, SHA-256 checked
    Fetch(FetchArgs),
    /// Show what a model file holds: architecture, sizes, tensors, tokenizer; with --fidelity, what quantization costs
    Inspect(InspectArgs),
    /// Show who computes what of a model, with predicted milliseconds and bytes; with --run, measured ones beside them
    Plan(PlanArgs),
}

/// `bifrost model fetch`.
#[derive(Args)]
pub struct FetchArgs {
    /// Name in the catalogue: smollm2-135m, gemma3-270m
    pub name: String,
    /// Download even when the cached file is right
    #[arg(long)]
    pub force: bool,
}

/// `bifrost model inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// A GGUF file, a Hugging Face directory, a name of the catalogue, or synthetic:NAME
    #[arg(value_name = "PATH|NAME")]
    pub model: String,
    /// Measure how often the quantized model agrees with the original
    #[arg(long)]
    pub fidelity: bool,
    /// Machine-readable output
    #[arg(long)]
    pub json: bool,
}

/// `bifrost model plan`.
#[derive(Args)]
pub struct PlanArgs {
    /// A GGUF file, a Hugging Face directory, a name of the catalogue, or synthetic:NAME
    #[arg(value_name = "PATH|NAME")]
    pub model: String,
    /// Memory of the evaluator that the plan may use, bytes or e.g. 2GiB [default: the evaluator's own]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub budget: Option<u64>,
    /// Which phases are delegated
    #[arg(long, value_enum, default_value = "hybrid_pd_split")]
    pub policy: Policy,
    /// How linear layers are executed
    #[arg(long, value_enum, default_value = "masked")]
    pub protocol: Protocol,
    /// How the evaluator holds the weights of direct
    #[arg(long, value_enum, default_value = "auto")]
    pub residency: Residency,
    /// Precision of the weights
    #[arg(long, value_enum, default_value = "w8")]
    pub weights: Weights,
    /// Positions of the prompt, which a decode step finds in its cache
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub positions: u32,
    /// Threads of each daemon [default: as many as the machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Let groups stay in the enclave whose delegation is predicted slower
    #[arg(long)]
    pub allow_enclave: bool,
    /// Measure costs although they are known from an earlier time
    #[arg(long)]
    pub recalibrate: bool,
    /// Decode 16 tokens by the plan and show what they cost
    #[arg(long)]
    pub run: bool,
    /// Pass on what the runtime writes to standard error
    #[arg(short, long)]
    pub verbose: bool,
    /// Machine-readable output
    #[arg(long)]
    pub json: bool,
}
