//! A gRPC channel whose connections are attested ones.

use std::sync::{Arc, Mutex, PoisonError};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint as Transport, Uri};
use tower::service_fn;

use super::{Attested, Endpoint, Failure, Kind};
use crate::trust::Trust;

/// A stream that was attested before the channel was made; taken once.
#[derive(Clone)]
pub(super) struct First(Arc<Mutex<Option<TlsStream<TcpStream>>>>);

impl First {
    pub(super) fn open(stream: TlsStream<TcpStream>) -> Self {
        Self(Arc::new(Mutex::new(Some(stream))))
    }

    pub(super) fn none() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    fn take(&self) -> Option<TlsStream<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A channel over `first` and, when that is used up, over connections that `again` attests; without it the channel ends
/// with its first connection.
pub(super) fn channel<W: Trust>(
    endpoint: &Endpoint,
    first: First,
    again: Option<Arc<Attested<W>>>,
) -> Result<Channel, Failure> {
    // The scheme is for gRPC's own headers; TLS is below, in the stream.
    let uri = format!("http://{}", endpoint.authority());
    let unnamed = |error| Failure::new(Kind::NoEvidence, format!("{endpoint}: {error}"));
    let transport = Transport::from_shared(uri).map_err(unnamed)?;
    let ended = Failure::new(Kind::NoEvidence, format!("{endpoint}: the connection that was verified is over"));
    Ok(transport.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (first, again, ended) = (first.take(), again.clone(), ended.clone());
        async move {
            let stream = match (first, again) {
                (Some(stream), _) => stream,
                (None, Some(attested)) => attested.attempt().await.outcome?.stream,
                (None, None) => return Err(ended),
            };
            Ok::<_, Failure>(TokioIo::new(stream))
        }
    })))
}
