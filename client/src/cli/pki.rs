//! Arguments of `bifrost pki`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Subcommands of `bifrost pki`.
#[derive(Subcommand)]
pub enum PkiCommand {
    /// Make an authority for one deployment; its directory belongs on a machine without a network
    Init(InitArgs),
    /// Sign a certificate for a runtime or an evaluator, with a new key or for a request made elsewhere
    Issue(IssueArgs),
    /// Make a key and a request for a certificate, where the key is to stay
    Request(RequestArgs),
    /// Show who certificates are for, for what, how long, and the pins of their keys
    Show(ShowArgs),
}

/// Which end of the link a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkRole {
    /// Connects; `clientAuth`
    Runtime,
    /// Is connected to; `serverAuth`
    Evaluator,
}

impl LinkRole {
    /// Its name in files and subjects.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Evaluator => "evaluator",
        }
    }
}

/// `bifrost pki init`.
#[derive(Args)]
pub struct InitArgs {
    /// Directory of the authority: ca.pem and ca.key
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Days for which it counts
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: u32,
}

/// `bifrost pki issue`.
#[derive(Args)]
pub struct IssueArgs {
    /// Directory of the authority
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Which end it is for
    #[arg(long, value_enum)]
    pub role: LinkRole,
    /// DNS name or address of the machine; may be given several times
    #[arg(long, value_name = "HOST", required = true, num_args = 1..)]
    pub name: Vec<String>,
    /// Days for which it counts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
    /// Where ROLE.pem and ROLE.key are written [default: the directory of the authority]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Sign the key of this request (PEM) instead of making one; names and role are those given here
    #[arg(long, value_name = "FILE")]
    pub csr: Option<PathBuf>,
    /// Replace files that exist, as on a renewal
    #[arg(long)]
    pub replace: bool,
}

/// `bifrost pki request`.
#[derive(Args)]
pub struct RequestArgs {
    /// Which end it is for
    #[arg(long, value_enum)]
    pub role: LinkRole,
    /// DNS name or address of this machine; may be given several times
    #[arg(long, value_name = "HOST", required = true, num_args = 1..)]
    pub name: Vec<String>,
    /// Where ROLE.key and ROLE.csr are written
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    pub replace: bool,
}

/// `bifrost pki show`.
#[derive(Args)]
pub struct ShowArgs {
    /// Certificates (PEM)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}
