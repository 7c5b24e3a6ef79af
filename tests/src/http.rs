//! Just enough of HTTP/1.1 to be a client of the proxy: one request a connection, answers with a length, in chunks,
//! or up to the end.

use crate::stage::LIMIT;
use anyhow::Context;
use serde_json::Value;
use std::collections::BTreeMap;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// An answer whose head has been read. Dropping it closes the connection.
pub struct Answer {
    /// The code.
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    stream: BufReader<TcpStream>,
    left: Left,
}

enum Left {
    Bytes(usize),
    Chunks,
    Nothing,
}

/// Sends a request; `headers` are lines. Returns when the head of the answer is there.
///
/// # Errors
/// If the connection breaks, or nothing comes for [`LIMIT`].
pub async fn send(port: u16, method: &str, path: &str, headers: &[&str], body: &[u8]) -> anyhow::Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for line in headers {
        head.push_str(&format!("{line}\r\n"));
    }
    head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes()).await?;
    // A server may answer, and close, before it has read all of this.
    let _ = stream.write_all(body).await;
    let mut stream = BufReader::new(stream);
    let line = line(&mut stream).await?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).context("a status line")?;
    let mut headers = BTreeMap::new();
    loop {
        let line = self::line(&mut stream).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let left = if headers.get("transfer-encoding").is_some_and(|e| e == "chunked") {
        Left::Chunks
    } else {
        Left::Bytes(headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0))
    };
    Ok(Answer { status, headers, stream, left })
}

/// Posts JSON.
///
/// # Errors
/// Those of [`send`].
pub async fn post(port: u16, path: &str, body: &Value) -> anyhow::Result<Answer> {
    send(port, "POST", path, &[], body.to_string().as_bytes()).await
}

/// Posts JSON and reads the JSON that comes back.
///
/// # Errors
/// Those of [`send`], and an answer that is no JSON.
pub async fn exchange(port: u16, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
    let answer = post(port, path, body).await?;
    Ok((answer.status, answer.json().await?))
}

impl Answer {
    /// The next part of the body; none at its end.
    ///
    /// # Errors
    /// If the connection breaks first.
    pub async fn part(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let size = match self.left {
            Left::Nothing | Left::Bytes(0) => return Ok(None),
            Left::Bytes(size) => size,
            Left::Chunks => usize::from_str_radix(&line(&mut self.stream).await?, 16)?,
        };
        let mut part = vec![0; size];
        timeout(LIMIT, self.stream.read_exact(&mut part)).await??;
        match self.left {
            Left::Chunks => {
                line(&mut self.stream).await?;
            }
            _ => self.left = Left::Nothing,
        }
        if size == 0 {
            self.left = Left::Nothing;
            return Ok(None);
        }
        Ok(Some(part))
    }

    /// All of the body.
    ///
    /// # Errors
    /// If the connection breaks first.
    pub async fn text(mut self) -> anyhow::Result<String> {
        let mut all = Vec::new();
        while let Some(part) = self.part().await? {
            all.extend(part);
        }
        Ok(String::from_utf8(all)?)
    }

    /// All of the body as JSON.
    ///
    /// # Errors
    /// If it is none.
    pub async fn json(self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.text().await?)?)
    }

    /// All events of a stream, which must end with `[DONE]`. Comments are left out.
    ///
    /// # Errors
    /// If it does not.
    pub async fn events(self) -> anyhow::Result<Vec<Value>> {
        let text = self.text().await?;
        let data = text.split("\n\n").filter(|frame| !frame.starts_with(':') && !frame.is_empty());
        let mut data: Vec<_> =
            data.map(|frame| frame.strip_prefix("data: ").context("a frame")).collect::<Result<_, _>>()?;
        anyhow::ensure!(data.pop() == Some("[DONE]"), "the stream does not end with [DONE]");
        data.into_iter().map(|event| Ok(serde_json::from_str(event)?)).collect()
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> anyhow::Result<String> {
    let mut line = String::new();
    let read = timeout(LIMIT, stream.read_line(&mut line)).await??;
    anyhow::ensure!(read > 0, "the connection was closed");
    Ok(line.trim_end().to_owned())
}
