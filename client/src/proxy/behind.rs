//! The runtime behind the proxy: whether it is ready, and what it serves.

use std::sync::Arc;
use std::time::Duration;

use proto::v1;
use proto::v1::inference_client::InferenceClient;
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::passage::Passage;
use super::refusal::{Refusal, Refused};
use crate::Error;
use crate::progress::Progress;

/// Between two looks at the runtime.
const POLL: Duration = Duration::from_millis(500);
/// A look takes milliseconds.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

type Description = Option<Arc<v1::DescribeResponse>>;

/// A runtime that is looked at all the time.
pub(super) struct Behind {
    passage: Passage,
    description: watch::Receiver<Description>,
    /// Names of the model that the configuration and the command line give.
    names: Vec<String>,
}

impl Behind {
    /// Looks once and then keeps looking.
    pub(super) async fn watch(passage: Passage, names: Vec<String>, progress: Arc<Progress>) -> Self {
        let first = look(&passage).await;
        say(&progress, first.as_ref().map(|_| ()));
        let mut ready = first.is_ok();
        let (tell, description) = watch::channel(first.ok());
        let watched = passage.clone();
        tokio::spawn(async move {
            while !tell.is_closed() {
                tokio::time::sleep(POLL).await;
                let seen = look(&watched).await;
                if seen.is_ok() != ready {
                    ready = !ready;
                    say(&progress, seen.as_ref().map(|_| ()));
                }
                tell.send_replace(seen.ok());
            }
        });
        Self { passage, description, names }
    }

    /// What is served now.
    ///
    /// # Errors
    /// 503 while the runtime has not proved what it is, is not there, loads, or drains.
    pub(super) fn ready(&self) -> Result<Arc<v1::DescribeResponse>, Refusal> {
        self.passage.open()?;
        self.description.borrow().clone().ok_or_else(|| Refusal::unavailable("the runtime is not ready"))
    }

    /// Asks the runtime, and once more on a new connection if it says that this one has to prove itself again.
    ///
    /// # Errors
    /// The runtime's, or that the way to it is blocked.
    pub(super) async fn ask<T, F: Future<Output = Result<T, Status>>>(
        &self,
        ask: impl Fn(InferenceClient<Channel>) -> F,
    ) -> Result<T, Refused> {
        let open = self.passage.open()?;
        match ask(open.runtime.client()).await {
            Err(status) if status.code() == Code::Unauthenticated && self.passage.attests() => {
                self.passage.renew(open.number).await;
                let open = self.passage.open()?;
                Ok(ask(open.runtime.client()).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// The names that the model answers to, the one it is listed by first.
    pub(super) fn names<'a>(&'a self, description: &'a v1::DescribeResponse, own: &'a str) -> Vec<&'a str> {
        let given = self.names.iter().map(String::as_str).filter(|name| !name.is_empty());
        given.chain([own, description.model.as_str()]).collect()
    }
}

/// A name without spaces, from a runtime's name for people.
pub(super) fn plain(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("-").to_lowercase()
}

/// One look. A connection that is over is reported to the passage, which may make another one.
async fn look(passage: &Passage) -> Result<Arc<v1::DescribeResponse>, Error> {
    let open = passage.open().map_err(|refusal| Error::Runtime(refusal.message))?;
    let look = async {
        if !open.runtime.health().await? {
            return Err(Status::unavailable("it says that it is not serving"));
        }
        Ok(Arc::new(open.runtime.client().describe(v1::DescribeRequest {}).await?.into_inner()))
    };
    match tokio::time::timeout(LOOK_LIMIT, look).await {
        Ok(Ok(seen)) => Ok(seen),
        Ok(Err(status)) => {
            if std::error::Error::source(&status).is_some() || status.code() == Code::Unauthenticated {
                passage.lost(open.number);
            }
            Err(status.into())
        }
        Err(_) => {
            passage.lost(open.number);
            Err(Error::Runtime(format!("it has not answered for {} s", LOOK_LIMIT.as_secs())))
        }
    }
}

fn say(progress: &Progress, seen: Result<(), &Error>) {
    match seen {
        Ok(()) => progress.say("runtime      ready"),
        Err(error) => progress.say(&format!("runtime      not ready: {error}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_for_people_become_names_for_programs() {
        assert_eq!(super::plain("Smollm2 135M  8k"), "smollm2-135m-8k");
    }
}
