//! Evidence from the root helper: a small process that may use configfs, behind a unix socket.
//!
//! The runtime needs no privilege then. One request a connection, see [`wire`]; [`serve`] is the other end, which
//! `bifrost-quote-helper` runs.

pub mod serve;
pub mod wire;

use crate::statement;
use attest::source::{Collected, Source, SourceError};
use proto::v1::{Platform, RuntimeEvent};
use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};
use wire::{Answer, Request, WireError};

/// Where the helper listens.
pub const SOCKET: &str = "/run/bifrost-quote/socket";
/// How long an answer may take, those before it in the queue included.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The client of a root helper.
#[derive(Debug)]
pub struct Helper {
    socket: PathBuf,
}

/// Why the helper gave no evidence.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// Nobody there, or not for us.
    #[error("{socket}: {source}")]
    Connect {
        /// The socket.
        socket: String,
        /// What the system says.
        source: io::Error,
    },
    /// The exchange broke off or is no exchange.
    #[error("helper at {socket}: {source}; see its log")]
    Exchange {
        /// The socket.
        socket: String,
        /// What is wrong.
        source: WireError,
    },
    /// It has no TEE.
    #[error("helper: {0}")]
    NoTee(String),
    /// It has no quote.
    #[error("helper: {0}")]
    Quote(String),
    /// It answers something else.
    #[error("helper: answer of another kind than the request")]
    OtherAnswer,
}

impl From<HelperError> for SourceError {
    fn from(error: HelperError) -> Self {
        let text = error.to_string();
        match error {
            HelperError::Connect { .. } | HelperError::NoTee(_) => Self::NoTee(text),
            _ => Self::Quote(text),
        }
    }
}

impl Helper {
    /// The helper at `socket`, which extends RTMR3 with `events` where there is one. Nothing can be added later.
    ///
    /// # Errors
    /// [`HelperError`] if it cannot be reached or refuses an event.
    pub fn open(socket: &Path, events: &[RuntimeEvent]) -> Result<Self, HelperError> {
        let helper = Self { socket: socket.to_owned() };
        drop(helper.connect()?);
        for event in events {
            match helper.ask(&Request::Extend(event.clone()))? {
                Answer::Extended => {}
                Answer::NoRegister => {
                    tracing::info!("no register for runtime measurements here; evidence goes without them");
                    break;
                }
                other => return Err(refused(other)),
            }
        }
        Ok(helper)
    }

    fn connect(&self) -> Result<UnixStream, HelperError> {
        let connected = UnixStream::connect(&self.socket).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        connected.map_err(|source| HelperError::Connect { socket: self.socket.display().to_string(), source })
    }

    fn ask(&self, request: &Request) -> Result<Answer, HelperError> {
        let mut stream = self.connect()?;
        let answer = request
            .write(&mut stream)
            .and_then(|()| Ok(stream.shutdown(std::net::Shutdown::Write)?))
            .and_then(|()| Answer::read(&mut stream));
        answer.map_err(|source| HelperError::Exchange { socket: self.socket.display().to_string(), source })
    }
}

impl Source for Helper {
    fn name(&self) -> &'static str {
        "helper"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        let collected = match self.ask(&Request::Quote(*report_data))? {
            Answer::Quoted(collected) => *collected,
            other => return Err(refused(other).into()),
        };
        // The kernel's interface serves no other platforms.
        if !matches!(collected.platform, Platform::Tdx | Platform::SevSnp) {
            return Err(HelperError::OtherAnswer.into());
        }
        statement::check(&collected, report_data)?;
        Ok(collected)
    }
}

fn refused(answer: Answer) -> HelperError {
    match answer {
        Answer::NoTee(text) => HelperError::NoTee(text),
        Answer::Failed(text) => HelperError::Quote(text),
        Answer::Quoted(_) | Answer::Extended | Answer::NoRegister => HelperError::OtherAnswer,
    }
}

#[cfg(test)]
mod tests;
