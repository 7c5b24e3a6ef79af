//! Frames of the exchange: a big-endian u32 of the length, then one protobuf message.

use crate::Error;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Largest challenge, admission and answer to it, in bytes.
pub(crate) const SMALL: usize = 4 << 10;
/// Largest evidence: a quote of up to 128 KiB with collateral-sized event logs beside it.
pub(crate) const EVIDENCE: usize = 4 << 20;

/// Reads one message of at most `cap` bytes; nothing is allocated for a frame that claims more.
pub(crate) async fn read<M: Message + Default>(
    stream: &mut (impl AsyncRead + Unpin),
    what: &'static str,
    cap: usize,
) -> Result<M, Error> {
    let broken = |e: std::io::Error| Error::Wire(format!("{what}: {e}"));
    let length = stream.read_u32().await.map_err(broken)? as usize;
    if length > cap {
        return Err(Error::Wire(format!("{what} of {length} bytes, at most {cap} are taken")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.map_err(broken)?;
    M::decode(bytes.as_slice()).map_err(|e| Error::Wire(format!("{what} is malformed: {e}")))
}

/// Writes one message and flushes.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    what: &'static str,
    message: &impl Message,
) -> Result<(), Error> {
    let body = message.encode_to_vec();
    let length = u32::try_from(body.len()).map_err(|_| Error::Wire(format!("{what} of {} bytes", body.len())))?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    let sent = async {
        stream.write_all(&frame).await?;
        stream.flush().await
    };
    sent.await.map_err(|e: std::io::Error| Error::Wire(format!("{what}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::Challenge;

    #[tokio::test]
    async fn frames_are_capped_before_they_are_read() {
        let (mut a, mut b) = tokio::io::duplex(64);
        let sent = Challenge { version: 1, nonce: vec![7; 32].into(), suite: "s".into(), ..Default::default() };
        write(&mut a, "challenge", &sent).await.unwrap();
        assert_eq!(read::<Challenge>(&mut b, "challenge", 64).await.unwrap(), sent);
        write(&mut a, "challenge", &sent).await.unwrap();
        let error = read::<Challenge>(&mut b, "challenge", 8).await.unwrap_err().to_string();
        assert!(error.contains("at most 8 are taken"), "{error}");
    }

    #[tokio::test]
    async fn garbage_and_early_ends_are_errors() {
        let (mut a, mut b) = tokio::io::duplex(64);
        a.write_all(&[0, 0, 0, 3, 0xff, 0xff, 0xff]).await.unwrap();
        assert!(read::<Challenge>(&mut b, "challenge", 64).await.unwrap_err().to_string().contains("malformed"));
        a.write_all(&[0, 0, 0, 9, 1]).await.unwrap();
        drop(a);
        assert!(read::<Challenge>(&mut b, "challenge", 64).await.is_err());
    }
}
