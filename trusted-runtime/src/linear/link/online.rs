//! The line for masked activations: the calling thread itself talks to the socket.
//!
//! A linear call waits for its answer, and there are over a hundred of them a token. So the connection lives on a
//! runtime of its own without threads, which whoever calls drives while it waits: no message is handed from
//! thread to thread. A thread of low demands drives it now and then when nobody calls, for keep-alive and to notice
//! its end.

use super::{POLL, Peer, session::Refusal};
use proto::v1::{OnlineAnswer, OnlineJob, evaluator_client::EvaluatorClient, online_answer::Body};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

/// How often an idle line is driven, and for how long.
const IDLE: Duration = Duration::from_millis(500);
const TURN: Duration = Duration::from_millis(1);
/// One job at a time, and a few that were given up.
const QUEUE: usize = 16;

/// The reason of a line that ends because its session does.
pub(super) const CLOSED: &str = "the session closed";

/// Why a call has no answer.
pub(crate) enum NoAnswer {
    /// The caller does not want it any more.
    Unwanted,
    /// The session is gone.
    Lost(String),
}

/// An online stream on a connection of its own.
pub(crate) struct Online {
    line: Mutex<Option<Line>>,
    next: AtomicU64,
    /// Cancelled with the session; `closed` then says why.
    stop: CancellationToken,
    closed: Mutex<Option<String>>,
}

struct Line {
    runtime: Runtime,
    jobs: mpsc::Sender<OnlineJob>,
    answers: Streaming<OnlineAnswer>,
}

impl Drop for Online {
    fn drop(&mut self) {
        if let Some(line) = self.line.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // May be dropped on a thread that must not block.
            line.runtime.shutdown_background();
        }
    }
}

impl Online {
    /// Connects. Blocks: not for a thread of an asynchronous runtime.
    ///
    /// # Errors
    /// As every connection.
    pub(super) fn open(endpoint: &Peer, max_message: usize, stop: CancellationToken) -> Result<Arc<Self>, Refusal> {
        let lost = |reason: String| Refusal { reason, fatal: false };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| lost(e.to_string()))?;
        let (jobs, incoming) = mpsc::channel(QUEUE);
        let answers = runtime.block_on(async {
            let channel = endpoint.connect().await.map_err(lost)?;
            let mut client = EvaluatorClient::new(channel).max_decoding_message_size(max_message);
            Ok::<_, Refusal>(client.online(ReceiverStream::new(incoming)).await?.into_inner())
        })?;
        let line = Mutex::new(Some(Line { runtime, jobs, answers }));
        let online = Arc::new(Self { line, next: AtomicU64::new(0), stop, closed: Mutex::new(None) });
        let idle = Arc::downgrade(&online);
        let driver = move || {
            while let Some(online) = idle.upgrade() {
                if online.stop.is_cancelled() {
                    return;
                }
                online.turn();
                drop(online);
                std::thread::sleep(IDLE);
            }
        };
        std::thread::Builder::new().name("online-idle".into()).spawn(driver).map_err(|e| lost(e.to_string()))?;
        Ok(online)
    }

    /// The id of a new job.
    pub(crate) fn job_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a job and waits for its answer, of at most `bytes` bytes of words, while `wanted` says so. Jobs are done one
    /// after the other.
    ///
    /// # Errors
    /// Why there is none. An evaluator that answers a job that was never sent, or with nothing or too much, has ended
    /// its session.
    pub(crate) fn call(
        &self,
        job: OnlineJob,
        bytes: usize,
        wanted: impl Fn() -> bool,
    ) -> Result<OnlineAnswer, NoAnswer> {
        let id = job.job_id;
        let mut line = self.line();
        let Some(Line { runtime, jobs, answers }) = line.as_mut().filter(|_| !self.stop.is_cancelled()) else {
            return Err(NoAnswer::Lost(self.why()));
        };
        let result = runtime.block_on(async {
            let mut job = Some(job);
            loop {
                if let Some(waiting) = job.take() {
                    match jobs.try_send(waiting) {
                        Ok(()) => {}
                        Err(mpsc::error::TrySendError::Full(waiting)) => job = Some(waiting),
                        Err(mpsc::error::TrySendError::Closed(_)) => {
                            return Err(Some("it has closed the stream".into()));
                        }
                    }
                }
                match timeout(POLL, answers.message()).await {
                    Ok(Ok(Some(answer))) if answer.job_id == id => {
                        return match &answer.body {
                            None => Err(Some(format!("it answers job {id} with nothing"))),
                            Some(Body::Words(words)) if words.len() > bytes => {
                                Err(Some(format!("it answers more than job {id} asks for")))
                            }
                            Some(_) => Ok(answer),
                        };
                    }
                    // Late answers to a job that was given up are lawful; to one that never was, not.
                    Ok(Ok(Some(answer))) if answer.job_id >= self.next.load(Ordering::Relaxed) => {
                        return Err(Some(format!("it answers job {}, which was never sent", answer.job_id)));
                    }
                    Ok(Ok(Some(_))) | Err(_) => {}
                    Ok(Ok(None)) => return Err(Some("it has ended the stream".into())),
                    Ok(Err(status)) => return Err(Some(Refusal::from(status).reason)),
                }
                if self.stop.is_cancelled() {
                    return Err(Some(self.why()));
                }
                if !wanted() {
                    return Err(None);
                }
            }
        });
        result.map_err(|why| match why {
            None => NoAnswer::Unwanted,
            Some(reason) => {
                self.close(&reason);
                NoAnswer::Lost(reason)
            }
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.stop.is_cancelled()
    }

    /// Ends the line, and the session with it.
    pub(crate) fn close(&self, reason: &str) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.get_or_insert_with(|| reason.to_owned());
        drop(closed);
        self.stop.cancel();
    }

    /// Why it ended.
    pub(super) fn why(&self) -> String {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.clone().unwrap_or_else(|| CLOSED.into())
    }

    /// Drives the connection for a moment, unless somebody is calling.
    fn turn(&self) {
        let Ok(mut line) = self.line.try_lock() else { return };
        let Some(Line { runtime, answers, .. }) = line.as_mut() else { return };
        let end = runtime.block_on(async {
            loop {
                match timeout(TURN, answers.message()).await {
                    // Answers that nobody waits for.
                    Ok(Ok(Some(_))) => {}
                    Ok(Ok(None)) => return Some("it has ended the stream".to_owned()),
                    Ok(Err(status)) => return Some(Refusal::from(status).reason),
                    Err(_) => return None,
                }
                if self.stop.is_cancelled() {
                    return None;
                }
            }
        });
        drop(line);
        if let Some(reason) = end {
            self.close(&reason);
        }
    }

    fn line(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
