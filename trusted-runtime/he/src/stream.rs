//! The keystream of secrets, errors and masks: AES-256 in counter mode.
//!
//! A key is used for one stream, which begins at counter zero. On processors without AES instructions the `aes` crate
//! computes it bitsliced: slower, and without a table or branch that a key could steer.

use aes::Aes256;
pub(crate) use ctr::cipher::StreamCipher;
use ctr::{Ctr64LE, cipher::KeyIvInit};

/// The stream of `key`.
pub(crate) fn stream(key: &[u8; 32]) -> Ctr64LE<Aes256> {
    // The key by reference: no copy of it stays behind.
    Ctr64LE::new(key.into(), &[0; 16].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197, appendix C.3: the key 00 01 .. 1f; its stream is the encryption of 0, 1, .. in the low eight bytes.
    #[test]
    fn it_is_aes_256_in_counter_mode() {
        use aes::cipher::{Block, BlockCipherEncrypt, KeyInit};
        let key: [u8; 32] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        let block = Aes256::new(&key.into());
        let mut plain: Block<Aes256> = std::array::from_fn(|i| u8::try_from(i * 17).unwrap()).into();
        block.encrypt_block(&mut plain);
        assert_eq!(plain[..4], [0x8e, 0xa2, 0xb7, 0xca]);
        let mut found = [0; 48];
        stream(&key).write_keystream(&mut found);
        for (counter, found) in found.as_chunks::<16>().0.iter().enumerate() {
            let mut expected: Block<Aes256> =
                std::array::from_fn(|i| if i == 0 { u8::try_from(counter).unwrap() } else { 0 }).into();
            block.encrypt_block(&mut expected);
            assert_eq!(found[..], expected[..]);
        }
    }
}
