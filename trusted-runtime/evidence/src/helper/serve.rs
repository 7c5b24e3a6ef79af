//! The helper's own work: one request at a time, for one user.

use super::wire::{Answer, Request, WireError};
use crate::{fs::Files, rtmr::Rtmr3};
use attest::source::{Source, SourceError};
use proto::v1::RuntimeEvent;
use rustix::net::sockopt::socket_peercred;
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    time::Duration,
};

/// How long a peer may take to say what it wants, and to take the answer.
const PEER_PATIENCE: Duration = Duration::from_secs(5);

/// The TEE, its register, and whom they serve.
pub struct Service<F> {
    source: Box<dyn Source>,
    rtmr3: Option<Rtmr3<F>>,
    allowed: u32,
}

/// Why a connection was not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Of another user.
    #[error("peer has uid {found}, expected {allowed}")]
    Peer {
        /// The peer's user.
        found: u32,
        /// The user that is served.
        allowed: u32,
    },
    /// Not a request, or the peer went away.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl<F: Files> Service<F> {
    /// Serves the user `allowed` and nobody else.
    #[must_use]
    pub fn new(source: Box<dyn Source>, rtmr3: Option<Rtmr3<F>>, allowed: u32) -> Self {
        Self { source, rtmr3, allowed }
    }

    /// Serves connections one after the other, for ever.
    ///
    /// # Errors
    /// The listener's.
    pub fn run(&mut self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept()?;
            if let Err(error) = self.serve(stream) {
                tracing::warn!(%error, "request not served");
            }
        }
    }

    /// Serves one connection.
    ///
    /// # Errors
    /// [`ServeError`] if there was nothing to answer, or nobody.
    pub fn serve(&mut self, mut stream: UnixStream) -> Result<(), ServeError> {
        let found = socket_peercred(&stream).map_err(|e| WireError::Io(e.into()))?.uid.as_raw();
        if found != self.allowed {
            return Err(ServeError::Peer { found, allowed: self.allowed });
        }
        stream.set_read_timeout(Some(PEER_PATIENCE)).map_err(WireError::Io)?;
        stream.set_write_timeout(Some(PEER_PATIENCE)).map_err(WireError::Io)?;
        let answer = match Request::read(&mut stream)? {
            Request::Quote(report_data) => self.quote(&report_data),
            Request::Extend(event) => self.extend(event),
        };
        Ok(answer.write(&mut stream)?)
    }

    fn quote(&mut self, report_data: &[u8; 64]) -> Answer {
        // Before the quote: whatever happens afterwards, its register is final.
        if let Some(Err(error)) = self.rtmr3.as_ref().map(Rtmr3::seal) {
            return Answer::Failed(error.to_string());
        }
        match self.source.collect(report_data) {
            Ok(mut collected) => {
                if let Some(rtmr3) = &self.rtmr3 {
                    collected.runtime_log = rtmr3.log().to_vec();
                }
                Answer::Quoted(Box::new(collected))
            }
            Err(error) => {
                tracing::warn!(%error, "no evidence");
                match error {
                    SourceError::NoTee(text) => Answer::NoTee(text),
                    SourceError::Quote(text) => Answer::Failed(text),
                }
            }
        }
    }

    fn extend(&mut self, event: RuntimeEvent) -> Answer {
        let Some(rtmr3) = &mut self.rtmr3 else { return Answer::NoRegister };
        match rtmr3.extend(event) {
            Ok(()) => Answer::Extended,
            Err(error) => {
                tracing::warn!(%error, "register not extended");
                Answer::Failed(error.to_string())
            }
        }
    }
}
