//! Attested connections to a runtime: TCP, the exchange of [`attest::client`], judgement by a policy, then gRPC.
//!
//! There is no way around the judge: a [`tonic`] channel gets its stream from here, so nothing can be asked of a runtime
//! that has not proved what it is on that very connection, and every new connection proves it again.

mod address;
mod connector;
mod examiner;
mod failure;
mod terms;

use std::sync::Arc;
use std::time::Duration;

use attest_verify::Verified;
use proto::v1;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;

use crate::Error;
use crate::inference::Runtime;
use crate::key::TenantKey;
use crate::trust::Trust;
pub use address::{Endpoint, SCHEME};
use connector::{First, channel};
use examiner::Examiner;
pub use examiner::Seen;
pub use failure::{Failure, Kind};
pub use terms::{Terms, read_policy};

/// For TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whom to connect to, whose connection it is to be, and what is accepted there.
pub struct Attested<W> {
    endpoint: Endpoint,
    terms: Arc<Terms>,
    key: Option<TenantKey<W>>,
}

/// What came of one exchange.
pub struct Attempt<W> {
    /// The evidence and what was found about it, if it came that far.
    pub seen: Option<Seen>,
    /// The connection.
    pub outcome: Result<Link<W>, Failure>,
}

/// A connection to a runtime that was verified, before gRPC.
pub struct Link<W> {
    verified: Verified<W>,
    instance: [u8; 32],
    stream: TlsStream<TcpStream>,
}

/// A runtime that was verified, and the one connection on which it was. When that breaks, so does this.
pub struct VerifiedRuntime<W> {
    verified: Verified<W>,
    instance: [u8; 32],
    endpoint: Endpoint,
    channel: Channel,
}

impl<W: Trust> Attested<W> {
    /// Connections to `endpoint`: of the tenant with this key, or to release one.
    #[must_use]
    pub fn new(endpoint: Endpoint, terms: Terms, key: Option<TenantKey<W>>) -> Arc<Self> {
        Arc::new(Self { endpoint, terms: Arc::new(terms), key })
    }

    /// Where to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// By what it is judged.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Makes one connection and has it judged.
    pub async fn attempt(&self) -> Attempt<W> {
        let tcp = match self.endpoint.connect(CONNECT_TIMEOUT).await {
            Ok(tcp) => tcp,
            Err(failure) => return Attempt { seen: None, outcome: Err(failure) },
        };
        let examiner = Examiner::<W>::new(Arc::clone(&self.terms), self.endpoint.to_string());
        let admission = self.key.as_ref().map(TenantKey::admission);
        let credentials = self.key.as_ref().zip(admission.as_ref()).map(|(key, admission)| key.credentials(admission));
        let connected = attest::client::attest(tcp, &examiner, credentials).await;
        let seen = examiner.seen();
        let outcome = match connected {
            Ok((verified, stream)) => {
                let instance = seen.as_ref().map_or([0; 32], |seen| seen.instance);
                Ok(Link { verified, instance, stream })
            }
            Err(error) => Err(Failure::of(&error, &self.endpoint, seen.as_ref().map(|seen| &seen.report))),
        };
        Attempt { seen, outcome }
    }

    /// A verified runtime on one connection.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn verified(&self) -> Result<VerifiedRuntime<W>, Failure> {
        self.attempt().await.outcome?.speak(&self.endpoint).await
    }

    /// A runtime that is verified now and again with every new connection.
    ///
    /// # Errors
    /// [`Failure`] of the first connection; later ones are errors of requests.
    pub async fn runtime(self: &Arc<Self>) -> Result<Runtime, Error> {
        let link = self.attempt().await.outcome?;
        let first = First::open(link.stream);
        let channel = channel(&self.endpoint, first, Some(Arc::clone(self)))?;
        Ok(Runtime::over(channel, self.endpoint.to_string()))
    }

    /// A runtime that is verified when it is first asked something, and again with every new connection.
    ///
    /// # Errors
    /// [`Failure`] for an endpoint that gRPC cannot name.
    pub fn runtime_lazy(self: &Arc<Self>) -> Result<Runtime, Error> {
        let channel = channel(&self.endpoint, First::none(), Some(Arc::clone(self)))?;
        Ok(Runtime::over(channel, self.endpoint.to_string()))
    }
}

impl<W: Trust> Link<W> {
    /// Begins gRPC on the connection.
    ///
    /// # Errors
    /// [`Failure`] for an endpoint that gRPC cannot name.
    pub async fn speak(self, endpoint: &Endpoint) -> Result<VerifiedRuntime<W>, Failure> {
        let Self { verified, instance, stream } = self;
        let channel = channel::<W>(endpoint, First::open(stream), None)?;
        Ok(VerifiedRuntime { verified, instance, endpoint: endpoint.clone(), channel })
    }
}

impl<W> VerifiedRuntime<W> {
    /// What was verified.
    #[must_use]
    pub fn verified(&self) -> &Verified<W> {
        &self.verified
    }

    /// The runtime's public values, which the evidence covers.
    #[must_use]
    pub fn values(&self) -> &v1::RuntimeValues {
        self.verified.values()
    }

    /// SHA-256 of the process's public key: names it.
    #[must_use]
    pub fn instance(&self) -> &[u8; 32] {
        &self.instance
    }

    /// Where it is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Its service of inference, on this connection alone.
    #[must_use]
    pub fn inference(&self) -> Runtime {
        Runtime::over(self.channel.clone(), self.endpoint.to_string())
    }

    /// Its service of keys, on this connection alone.
    pub(crate) fn keys(&self) -> v1::keys_client::KeysClient<Channel> {
        v1::keys_client::KeysClient::new(self.channel.clone())
    }
}
