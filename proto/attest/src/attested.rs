//! A connection that has got its evidence, and everything that ends it.

use crate::{server::Session, waiting::Held};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// A connection that has got its evidence and was let in.
pub struct Attested<T> {
    tls: TlsStream<TcpStream>,
    session: Arc<Session<T>>,
    ends: Ends,
    _stranger: Option<Held>,
}

/// What ends a connection whatever still runs on it.
pub(crate) struct Ends {
    /// Its evidence is too old.
    old: Pin<Box<Sleep>>,
    /// Nothing was said by then; none once something was.
    silent: Option<Pin<Box<Sleep>>>,
    /// The key of its tenant is gone.
    key: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Ends {
    pub(crate) fn new(age: Duration) -> Self {
        Self { old: Box::pin(sleep(age)), silent: None, key: None }
    }

    /// The client must say something within `time`.
    pub(crate) fn begins(&mut self, time: Duration) {
        self.silent = Some(Box::pin(sleep(time)));
    }

    /// `notice` after `ended`.
    pub(crate) fn with(&mut self, ended: impl Future<Output = ()> + Send + 'static, notice: Duration) {
        self.key = Some(Box::pin(async move {
            ended.await;
            sleep(notice).await;
        }));
    }

    /// Why it is over, if it is.
    fn reason(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        if self.old.as_mut().poll(cx).is_ready() {
            return Some("the connection's evidence is too old");
        }
        if self.silent.as_mut().is_some_and(|silent| silent.as_mut().poll(cx).is_ready()) {
            return Some("nothing was said on the connection");
        }
        // A future that is ready must not be asked again.
        if self.key.as_mut().is_some_and(|key| key.as_mut().poll(cx).is_ready()) {
            self.key = Some(Box::pin(std::future::ready(())));
            return Some("the key of the connection's tenant has ended");
        }
        None
    }
}

impl<T> Attested<T> {
    pub(crate) fn new(tls: TlsStream<TcpStream>, session: Arc<Session<T>>, ends: Ends, stranger: Option<Held>) -> Self {
        Self { tls, session, ends, _stranger: stranger }
    }

    /// What is known of it.
    #[must_use]
    pub fn session(&self) -> &Arc<Session<T>> {
        &self.session
    }
}

impl<T: Send + Sync + 'static> Connected for Attested<T> {
    type ConnectInfo = Arc<Session<T>>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.session.clone()
    }
}

impl<T> AsyncRead for Attested<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(reason) = self.ends.reason(cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.tls).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.ends.silent = None;
        }
        read
    }
}

impl<T> AsyncWrite for Attested<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn, ready};

    async fn over(mut ends: Ends) -> &'static str {
        poll_fn(move |cx| ends.reason(cx).map_or(Poll::Pending, Poll::Ready)).await
    }

    #[tokio::test]
    async fn a_connection_ends_by_age_by_silence_or_with_its_key() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(1000));
        let mut silent = Ends::new(long);
        silent.begins(short);
        silent.with(pending(), short);
        assert_eq!(over(silent).await, "nothing was said on the connection");
        let mut old = Ends::new(short);
        old.begins(long);
        assert_eq!(over(old).await, "the connection's evidence is too old");
        let mut keyless = Ends::new(long);
        keyless.with(ready(()), short);
        let began = std::time::Instant::now();
        assert_eq!(over(keyless).await, "the key of the connection's tenant has ended");
        assert!(began.elapsed() >= short, "with notice");
    }
}
