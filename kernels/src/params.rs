//! Ring parameters: a literal, checked against the security table, then a digest for the wire.

use crate::{Error, modulus};

/// log2 q allowed for N = 2^10 ..= 2^16: ternary secret, 128-bit classical.
/// "Security Guidelines for Implementing Homomorphic Encryption", IACR ePrint 2024/463.
const MAX_LOG2_Q: [(u32, u32); 7] = [(10, 26), (11, 53), (12, 106), (13, 214), (14, 430), (15, 868), (16, 1747)];

/// What a person writes down: the ring Z_q[X]/(X^N + 1), N = 2^log_n, one prime q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamsLiteral {
    /// log2 of the ring degree, 10 ..= 15.
    pub log_n: u32,
    /// A prime of at most 51 bits with q = 1 mod 2N.
    pub q: u64,
}

/// The default ring: N = 2048 and the largest 51-bit prime that is 1 mod 2^16 (so that one prime
/// serves every ring degree up to 2^15).
pub const DEFAULT: ParamsLiteral = ParamsLiteral { log_n: 11, q: 2_251_799_813_554_177 };

/// The rings that every evaluator knows, the narrowest first. A runtime takes the first whose plaintext moduli are wide
/// enough for its matrices: residues of 45 bits are fewer bytes than those of 51, and up to 47 bits are three digits
/// in the offline product instead of four. Each q is the largest prime of its size that is 1 mod 2^16.
pub const RINGS: [ParamsLiteral; 3] =
    [ParamsLiteral { log_n: 11, q: 35_184_368_877_569 }, ParamsLiteral { log_n: 11, q: 140_737_487_306_753 }, DEFAULT];

/// Digest of a parameter literal; two sides with equal ids compute in the same ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParamsId(pub [u8; 32]);

/// Checked ring parameters: NTT-friendly, prime, inside the security table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    literal: ParamsLiteral,
}

impl ParamsLiteral {
    /// Checks the literal.
    ///
    /// # Errors
    /// [`Error::Params`] naming the field, what was found and what is allowed.
    pub fn check(self) -> Result<Params, Error> {
        let Self { log_n, q } = self;
        if !(10..=15).contains(&log_n) {
            return Err(Error::Params(format!("log_n is {log_n}, supported are 10 to 15")));
        }
        let bits = u64::BITS - q.leading_zeros();
        let table = MAX_LOG2_Q.iter().find(|(l, _)| *l == log_n).map_or(0, |(_, b)| *b);
        if bits > table {
            return Err(Error::Params(format!(
                "q has {bits} bits, the security table (ePrint 2024/463) allows {table} for N = 2^{log_n}"
            )));
        }
        if !(20..=51).contains(&bits) {
            return Err(Error::Params(format!("q has {bits} bits, supported are 20 to 51")));
        }
        if q % (2u64 << log_n) != 1 {
            return Err(Error::Params(format!("q = {q} is not 1 modulo 2N = 2^{}", log_n + 1)));
        }
        if !modulus::is_prime(q) {
            return Err(Error::Params(format!("q = {q} is not prime")));
        }
        Ok(Params { literal: self })
    }
}

impl Params {
    /// Ring degree N.
    pub fn n(&self) -> usize {
        1 << self.literal.log_n
    }

    /// log2 N.
    pub fn log_n(&self) -> u32 {
        self.literal.log_n
    }

    /// The prime modulus.
    pub fn q(&self) -> u64 {
        self.literal.q
    }

    /// Bits of a residue on the wire.
    pub fn bits(&self) -> u32 {
        u64::BITS - self.q().leading_zeros()
    }

    /// log2 q.
    #[expect(clippy::cast_precision_loss, reason = "q is below 2^53")]
    pub fn log2_q(&self) -> f64 {
        (self.q() as f64).log2()
    }

    /// Classical security of the set, from the table that [`ParamsLiteral::check`] enforces.
    pub fn security_bits(&self) -> u32 {
        128
    }

    /// Digest of the literal.
    pub fn id(&self) -> ParamsId {
        let mut h = blake3::Hasher::new_derive_key("bifrost 2026 ring parameters v1");
        h.update(&self.literal.log_n.to_le_bytes());
        h.update(&self.literal.q.to_le_bytes());
        ParamsId(*h.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ring_has_the_largest_prime_of_its_kind() {
        for (ring, bits) in RINGS.iter().zip([45, 47, 51]) {
            let mut q = (1u64 << bits) + 1 - (1 << 16);
            while !modulus::is_prime(q) {
                q -= 1 << 16;
            }
            assert_eq!(q, ring.q);
            assert_eq!(ring.check().map(|p| p.bits()), Ok(bits));
        }
    }

    #[test]
    fn insecure_literals_do_not_construct() {
        let err = ParamsLiteral { log_n: 10, q: DEFAULT.q }.check().expect_err("too many bits");
        assert!(err.to_string().contains("allows 26 for N = 2^10"), "{err}");
    }
}
