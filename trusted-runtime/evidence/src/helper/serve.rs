//! The helper's own work: one request at a time, for one user.

use super::wire::{Answer, Request, WireError};
use crate::{fs::Files, rtmr::Rtmr3};
use attest::source::{Collected, Source, SourceError};
use proto::v1::RuntimeEvent;
use rustix::net::sockopt::socket_peercred;
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    time::Duration,
};

/// How long a peer may take to say what it wants, and to take the answer.
const PEER_PATIENCE: Duration = Duration::from_secs(5);

/// The TEE and its register.
pub struct Tee<F> {
    /// Where quotes come from.
    pub source: Box<dyn Source>,
    /// RTMR3, where there is one.
    pub rtmr3: Option<Rtmr3<F>>,
}

/// The TEE, looked for when it is first asked, and the user that it serves.
pub struct Service<F> {
    find: Box<dyn FnMut() -> Result<Tee<F>, SourceError> + Send>,
    found: Option<Tee<F>>,
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
    /// Serves the user `allowed` and nobody else. What `find` says is answered as long as it finds nothing: a runtime
    /// learns why there is no TEE, and a driver may be loaded later.
    pub fn new(find: impl FnMut() -> Result<Tee<F>, SourceError> + Send + 'static, allowed: u32) -> Self {
        Self { find: Box::new(find), found: None, allowed }
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
        let request = Request::read(&mut stream)?;
        let answer = self.answer(request).unwrap_or_else(|error| {
            tracing::warn!(%error, "request refused");
            match error {
                SourceError::NoTee(text) => Answer::NoTee(text),
                SourceError::Quote(text) => Answer::Failed(text),
            }
        });
        Ok(answer.write(&mut stream)?)
    }

    fn answer(&mut self, request: Request) -> Result<Answer, SourceError> {
        let tee = match &mut self.found {
            Some(tee) => tee,
            none => none.insert((self.find)()?),
        };
        match request {
            Request::Quote(report_data) => tee.quote(&report_data),
            Request::Extend(event) => tee.extend(event),
        }
    }
}

impl<F: Files> Tee<F> {
    fn quote(&self, report_data: &[u8; 64]) -> Result<Answer, SourceError> {
        let mut log = Vec::new();
        if let Some(rtmr3) = &self.rtmr3 {
            // Before the quote: whatever happens afterwards, its register is final.
            rtmr3.seal()?;
            log = rtmr3.log().to_vec();
        }
        let collected = self.source.collect(report_data)?;
        Ok(Answer::Quoted(Box::new(Collected { runtime_log: log, ..collected })))
    }

    fn extend(&mut self, event: RuntimeEvent) -> Result<Answer, SourceError> {
        let Some(rtmr3) = &mut self.rtmr3 else { return Ok(Answer::NoRegister) };
        rtmr3.extend(event)?;
        Ok(Answer::Extended)
    }
}
