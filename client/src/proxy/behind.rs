//! The runtime behind the proxy: whether it is ready, and what it serves.

use std::sync::Arc;
use std::time::Duration;

use proto::v1;
use tokio::sync::watch;

use super::refusal::Refusal;
use crate::Error;
use crate::inference::Runtime;
use crate::progress::Progress;

/// Between two looks at the runtime.
const POLL: Duration = Duration::from_millis(500);
/// A look takes milliseconds.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

type State = Option<Arc<v1::DescribeResponse>>;

/// A runtime that is looked at all the time.
pub(super) struct Behind {
    pub(super) runtime: Runtime,
    state: watch::Receiver<State>,
    /// Names of the model that the configuration and the command line give.
    names: Vec<String>,
}

impl Behind {
    /// Looks once and then keeps looking.
    pub(super) async fn watch(runtime: Runtime, names: Vec<String>, progress: Arc<Progress>) -> Self {
        let first = look(&runtime).await;
        say(&progress, first.as_ref().map(|_| ()));
        let mut ready = first.is_ok();
        let (tell, state) = watch::channel(first.ok());
        let watched = runtime.clone();
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
        Self { runtime, state, names }
    }

    /// What is served now.
    ///
    /// # Errors
    /// 503 while the runtime is not there, loads, or drains.
    pub(super) fn ready(&self) -> Result<Arc<v1::DescribeResponse>, Refusal> {
        self.state.borrow().clone().ok_or_else(|| Refusal::unavailable("the runtime is not ready"))
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

async fn look(runtime: &Runtime) -> Result<Arc<v1::DescribeResponse>, Error> {
    let look = async {
        if !runtime.serving().await? {
            return Err(Error::Runtime("it says that it is not serving".into()));
        }
        runtime.describe().await.map(Arc::new)
    };
    match tokio::time::timeout(LOOK_LIMIT, look).await {
        Ok(seen) => seen,
        Err(_) => Err(Error::Runtime(format!("it has not answered for {} s", LOOK_LIMIT.as_secs()))),
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
