//! The commands that judge a runtime, and the arguments of attested connections.

use std::path::PathBuf;

use attest_verify::collateral::Ca;
use attest_verify::hex::{Hex, Sha256};
use clap::{Args, Subcommand};

use crate::trust::seconds_of;

/// Where collateral comes from and what is remembered; for every command that judges.
#[derive(Args, Clone, Default)]
pub struct TrustArgs {
    /// Intel's collateral from this bundle alone, see `bifrost collateral fetch`; nothing is fetched then
    #[arg(long, value_name = "FILE")]
    pub collateral: Option<PathBuf>,
    /// A service that has Intel's collateral, asked in the order given [default: Intel's own]
    #[arg(long, value_name = "URL")]
    pub collateral_endpoint: Vec<String>,
    /// AMD's certificates and revocation lists from this file alone; nothing of them is fetched then
    #[arg(long, value_name = "FILE")]
    pub amd_collateral: Option<PathBuf>,
    /// A key distribution service that has AMD's, asked in the order given [default: AMD's own]
    #[arg(long, value_name = "URL")]
    pub amd_endpoint: Vec<String>,
    /// Log of accepted evidence [default: bifrost/attestations.jsonl in the state directory]
    #[arg(long, value_name = "FILE")]
    pub attestation_log: Option<PathBuf>,
    /// Take a policy or collateral that is older than what was accepted before; for this one time
    #[arg(long)]
    pub accept_rollback: bool,
}

/// For the commands that talk to a runtime, https:// or attested://.
#[derive(Args, Clone, Default)]
pub struct AttestedArgs {
    /// What is accepted of an attested:// runtime (TOML)
    #[arg(long, value_name = "FILE")]
    pub attestation_policy: Option<PathBuf>,
    /// The tenant's key that was released to the attested:// runtime, see `bifrost keygen`
    #[arg(long, value_name = "FILE")]
    pub tenant_key: Option<PathBuf>,
    /// Collateral and log.
    #[command(flatten)]
    pub trust: TrustArgs,
}

impl AttestedArgs {
    /// Whether any of them was given.
    #[must_use]
    pub fn any(&self) -> bool {
        let TrustArgs {
            collateral,
            collateral_endpoint,
            amd_collateral,
            amd_endpoint,
            attestation_log,
            accept_rollback,
        } = &self.trust;
        let files = [&self.attestation_policy, &self.tenant_key, collateral, amd_collateral, attestation_log];
        let endpoints = [collateral_endpoint, amd_endpoint];
        files.iter().any(|file| file.is_some()) || endpoints.iter().any(|e| !e.is_empty()) || *accept_rollback
    }
}

/// `bifrost verify`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("of").args(["runtime", "evidence"]).required(true))]
pub struct VerifyArgs {
    /// A running runtime, attested://HOST:PORT
    #[arg(value_name = "URL")]
    pub runtime: Option<String>,
    /// What is accepted of a runtime (TOML)
    #[arg(long, alias = "attestation-policy", value_name = "FILE", required = true)]
    pub policy: PathBuf,
    /// Evidence that --save wrote, in place of a running runtime
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// What saved evidence must be about, 128 hexadecimal digits, as shown when it was saved; without it the connection
    /// cannot be checked
    #[arg(long, value_name = "HEX", requires = "evidence", value_parser = Hex::<64>::parse)]
    pub report_data: Option<Hex<64>>,
    /// Check saved evidence as of this time, RFC 3339 [default: now]
    #[arg(long, value_name = "TIME", requires = "evidence", value_parser = seconds_of)]
    pub time: Option<u64>,
    /// Write the evidence that came into this new file
    #[arg(long, value_name = "FILE", conflicts_with = "evidence")]
    pub save: Option<PathBuf>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Collateral and log.
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// `bifrost explain-tcb`.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("of").args(["runtime", "evidence"]).required(true))]
pub struct ExplainArgs {
    /// A running runtime, attested://HOST:PORT
    #[arg(value_name = "URL")]
    pub runtime: Option<String>,
    /// Evidence that `bifrost verify --save` wrote
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Intel's collateral from this bundle alone; nothing is fetched then
    #[arg(long, value_name = "FILE")]
    pub collateral: Option<PathBuf>,
    /// A service that has Intel's collateral, asked in the order given [default: Intel's own]
    #[arg(long, value_name = "URL")]
    pub collateral_endpoint: Vec<String>,
}

/// Subcommands of `bifrost collateral`.
#[derive(Subcommand)]
pub enum CollateralCommand {
    /// Fetch what Intel says of a platform model into a bundle, for machines without a way to Intel
    Fetch(CollateralFetchArgs),
    /// Show what a bundle holds
    Show(CollateralFileArgs),
    /// Show it, and end with 1 unless all of it is valid now
    Check(CollateralFileArgs),
}

/// `bifrost collateral fetch`.
#[derive(Args)]
pub struct CollateralFetchArgs {
    /// Platform model, 12 hexadecimal digits; `bifrost explain-tcb` shows a runtime's
    #[arg(long, value_name = "HEX", value_parser = Hex::<6>::parse)]
    pub fmspc: Hex<6>,
    /// Intel's authority for the platform's certificate: platform for servers of several sockets
    #[arg(long, value_parser = authority)]
    pub ca: Ca,
    /// A service that has it, asked in the order given [default: Intel's own]
    #[arg(long, value_name = "URL")]
    pub endpoint: Vec<String>,
    /// The bundle; what else is in it stays
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// `bifrost collateral show` and `check`.
#[derive(Args)]
pub struct CollateralFileArgs {
    /// A bundle
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print exactly one JSON list on standard output
    #[arg(long)]
    pub json: bool,
}

fn authority(text: &str) -> Result<Ca, String> {
    let known = [Ca::Platform, Ca::Processor];
    known.into_iter().find(|ca| ca.name() == text).ok_or_else(|| "expected platform or processor".to_owned())
}

/// `bifrost keygen`.
#[derive(Args)]
pub struct KeygenArgs {
    /// Whose key it is: letters, digits, and . _ - inside
    #[arg(long, value_name = "NAME")]
    pub tenant: String,
    /// The new file
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Name of the key [default: the date and eight random digits]
    #[arg(long, value_name = "ID")]
    pub key_id: Option<String>,
    /// Days until it expires; runtimes take no key that lasts longer than 400
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub expires_days: u32,
    /// Digest of the parameter sets it is for [default: what is verified when it is released]
    #[arg(long, value_name = "HEX", value_parser = Sha256::parse)]
    pub params: Option<Sha256>,
    /// A key for simulated runtimes: others refuse it, and simulated ones refuse all others
    #[arg(long)]
    pub test: bool,
}

/// `bifrost release-key`.
#[derive(Args)]
pub struct ReleaseKeyArgs {
    /// The runtime, attested://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub runtime: String,
    /// What is accepted of it (TOML)
    #[arg(long, alias = "attestation-policy", value_name = "FILE")]
    pub policy: PathBuf,
    /// The key, see `bifrost keygen`
    #[arg(long, value_name = "FILE")]
    pub tenant_key: PathBuf,
    /// The key of an encrypted model, an age identity, released with it
    #[arg(long, value_name = "FILE")]
    pub model_key: Option<PathBuf>,
    /// Key of the tenant that this one replaces, revoked as soon as the new one is held; goes with --as
    #[arg(long, value_name = "ID")]
    pub replaces: Option<String>,
    /// Connect as the tenant, with the key that the runtime holds already
    #[arg(long = "as", id = "as_key", value_name = "FILE")]
    pub as_key: Option<PathBuf>,
    /// Release to this process alone, as `bifrost verify` showed it: another one restarted in between
    #[arg(long, value_name = "HEX", value_parser = Sha256::parse)]
    pub instance: Option<Sha256>,
    /// Where receipts are kept [default: bifrost/receipts in the state directory]
    #[arg(long, value_name = "DIR")]
    pub receipts: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Take this key of the tenant away, with --tenant-key as proof; releases nothing
    #[arg(long, value_name = "ID", conflicts_with_all = ["held", "replaces", "as_key", "model_key", "receipts"])]
    pub revoke: Option<String>,
    /// List the tenant's keys that are held, with --tenant-key as proof; releases nothing
    #[arg(long, conflicts_with_all = ["replaces", "as_key", "model_key", "receipts"])]
    pub held: bool,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Collateral and log.
    #[command(flatten)]
    pub trust: TrustArgs,
}
