//! `attested://HOST:PORT`.

use std::fmt;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::failure::{Failure, Kind};
use crate::Error;

/// How addresses of attested runtimes begin.
pub const SCHEME: &str = "attested://";

/// The address of an attested runtime, in one spelling: it names the endpoint in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// Reads `attested://HOST:PORT`; an IPv6 address is written in brackets.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = || Error::Usage(format!("endpoint is `{url}`, expected {SCHEME}HOST:PORT"));
        let authority = url.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten();
        let port = port.filter(|port| *port != 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().ok().map(|address| format!("[{address}]")),
            // The dot at the end of a full name names nothing.
            None => Some(host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()).filter(|host| {
                let good = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                !host.is_empty() && !host.ends_with('.') && host.bytes().all(good)
            }),
        };
        Ok(Self { host: host.ok_or_else(wrong)?, port })
    }

    /// Opens TCP.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<TcpStream, Failure> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let failure = |reason: String| Failure::new(Kind::NoEvidence, format!("no connection to {self}: {reason}"));
        let connected = timeout(limit, TcpStream::connect((host, self.port))).await;
        let tcp = connected.map_err(|_| failure(format!("no answer in {} s", limit.as_secs())))?;
        let tcp = tcp.map_err(|error| failure(error.to_string()))?;
        tcp.set_nodelay(true).map_err(|error| failure(error.to_string()))?;
        Ok(tcp)
    }

    /// `HOST:PORT`.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_one_spelling() {
        for (url, shown) in [
            ("attested://Runtime.Example:7443", "attested://runtime.example:7443"),
            ("attested://10.0.0.1:1/", "attested://10.0.0.1:1"),
            ("attested://[::1]:65535", "attested://[::1]:65535"),
            ("attested://[0:0::0:1]:1", "attested://[::1]:1"),
            ("attested://runtime.example.:7443", "attested://runtime.example:7443"),
        ] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn anything_else_is_a_usage_error_that_shows_the_form() {
        for url in [
            "",
            "https://host:1",
            "attested://host",
            "attested://host:",
            "attested://host:0",
            "attested://host:65536",
            "attested://host:+1",
            "attested://:1",
            "attested://.:1",
            "attested://host..:1",
            "attested://::1:1",
            "attested://[host]:1",
            "attested://user@host:1",
            "attested://host:1/path",
            "attested://ho st:1",
            "attested://[::1:1",
            "attested://::1:1",
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert_eq!(error.verdict_code(), 2, "{url}");
            assert!(error.to_string().contains("expected attested://HOST:PORT"), "{error}");
        }
    }
}
