//! Local mode: no attestation, and none is pretended. Whoever started the process hands a key over by its standard input.

use crate::Error;
use std::{io::Read, net::SocketAddr};
use zeroize::Zeroizing;

/// Takes the key of the process that started us, 32 bytes, and mixes it into all randomness.
///
/// # Errors
/// [`Error::Config`] if standard input ends before, or if `listen` can be reached from elsewhere.
pub fn take_key(listen: SocketAddr) -> Result<(), Error> {
    if !listen.ip().is_loopback() {
        return Err(Error::Config(format!("--local needs a loopback address, listen is {listen}")));
    }
    let mut key = Zeroizing::new([0; 32]);
    // Unbuffered: what follows on standard input is not ours.
    let read = rustix::stdio::stdin();
    let mut file =
        std::fs::File::from(read.try_clone_to_owned().map_err(|e| Error::Platform(format!("standard input: {e}")))?);
    file.read_exact(key.as_mut_slice()).map_err(|_| {
        Error::Config("--local takes a key of 32 bytes from standard input, from the process that starts it".into())
    })?;
    trusted_he::contribute(&key);
    Ok(())
}
