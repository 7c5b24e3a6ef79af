//! Scalar arithmetic modulo a prime below 2^51. The reference for every vector backend.

/// `a·b mod q`, all in [0, q).
#[inline]
pub fn mul(a: u64, b: u64, q: u64) -> u64 {
    #[expect(clippy::cast_possible_truncation, reason = "reduced modulo a u64")]
    {
        (u128::from(a) * u128::from(b) % u128::from(q)) as u64
    }
}

/// `a + b mod q`, all in [0, q).
#[inline]
pub fn add(a: u64, b: u64, q: u64) -> u64 {
    let s = a + b;
    if s >= q { s - q } else { s }
}

/// `a - b mod q`, all in [0, q).
#[inline]
pub fn sub(a: u64, b: u64, q: u64) -> u64 {
    if a >= b { a - b } else { a + q - b }
}

/// `a^e mod q`.
pub fn pow(mut a: u64, mut e: u64, q: u64) -> u64 {
    let mut r = 1;
    while e > 0 {
        if e & 1 == 1 {
            r = mul(r, a, q);
        }
        a = mul(a, a, q);
        e >>= 1;
    }
    r
}

/// The residue of a signed integer, in [0, q).
#[inline]
pub fn from_signed(x: i64, q: u64) -> u64 {
    x.rem_euclid(q as i64) as u64
}

/// The representative of a residue in (-q/2, q/2].
#[inline]
pub fn centred(x: u64, q: u64) -> i64 {
    if x > q / 2 { x as i64 - q as i64 } else { x as i64 }
}

/// Deterministic Miller-Rabin; the first twelve primes decide every 64-bit number (OEIS A014233).
pub fn is_prime(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 {
        return false;
    }
    for p in BASES {
        if n.is_multiple_of(p) {
            return n == p;
        }
    }
    let s = (n - 1).trailing_zeros();
    let d = (n - 1) >> s;
    BASES.iter().all(|&a| {
        let mut x = pow(a, d, n);
        if x == 1 || x == n - 1 {
            return true;
        }
        (1..s).any(|_| {
            x = mul(x, x, n);
            x == n - 1
        })
    })
}
