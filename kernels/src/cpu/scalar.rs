//! Portable integer arithmetic behind the lane interface: slow, obvious, and the oracle of the others.

use super::{DigitPlane, Field, Lanes};

/// Four lanes of portable Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type V = [f64; 4];

fn map2(a: V, b: V, f: impl Fn(f64, f64) -> f64) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// `x·w mod q`, centred. Exact: the arguments are integers below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "integers below 2^53")]
fn mul_mod(x: f64, w: f64, q: f64) -> f64 {
    let q = q as i128;
    let r = (x as i128 * w as i128).rem_euclid(q);
    (if r > q / 2 { r - q } else { r }) as f64
}

#[expect(clippy::inline_always, reason = "as the other instruction sets")]
impl Lanes for Scalar {
    type V = V;
    type Acc = [i64; 4];
    type Sum = [u128; 4];
    type Fixed = V;
    type Block = V;
    const WIDTH: usize = 4;
    const DRIFT: i64 = 0;

    fn splat(self, x: f64) -> V {
        [x; 4]
    }

    #[inline(always)]
    fn load(self, at: &V) -> V {
        *at
    }

    #[inline(always)]
    fn store(self, v: V, at: &mut V) {
        *at = v;
    }

    fn load_words(self, at: &V) -> V {
        at.map(|x| super::f64_of(x.to_bits()))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "integers in [0, q)")]
    fn store_words(self, f: &Field<V>, v: V, at: &mut V) {
        *at = map2(v, f.q, |x, q| f64::from_bits(if x < 0.0 { x + q } else { x } as u64));
    }

    fn load_i8(self, at: &[i8]) -> V {
        std::array::from_fn(|i| f64::from(at[i]))
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }

    fn mul_small(self, a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }

    fn mul_add_small(self, a: V, b: V, c: V) -> V {
        self.add(self.mul_small(a, b), c)
    }

    fn fused(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the low bits of an integer")]
    fn store_low(self, v: V, at: &mut [u32]) {
        for (at, v) in at.iter_mut().zip(v) {
            *at = v as i64 as u32;
        }
    }

    fn mul(self, f: &Field<V>, x: V, w: V, _wq: V) -> V {
        map2(x, w, |x, w| mul_mod(x, w, f.q[0]))
    }

    fn quotient(self, _f: &Field<V>, w: V) -> V {
        w
    }

    fn reduce(self, f: &Field<V>, x: V) -> V {
        x.map(|x| mul_mod(x, 1.0, f.q[0]))
    }

    fn zero(self) -> [i64; 4] {
        [0; 4]
    }

    #[expect(clippy::cast_possible_truncation, reason = "an integer below q")]
    fn mac(self, f: &Field<V>, acc: [i64; 4], x: V, w: V, wq: V) -> [i64; 4] {
        let p = self.mul(f, x, w, wq);
        std::array::from_fn(|i| acc[i].wrapping_add(p[i] as i64))
    }

    fn total(self, acc: [i64; 4]) -> i64 {
        acc.iter().fold(0, |s, &x| s.wrapping_add(x))
    }

    fn pack(self, f: &Field<V>, v: V) -> V {
        let mut words = v;
        self.store_words(f, v, &mut words);
        words
    }

    fn fix(self, input: &V) -> V {
        *input
    }

    fn sum_zero(self) -> [u128; 4] {
        [0; 4]
    }

    fn sum_add(self, sum: [u128; 4], weight: &V, input: V) -> [u128; 4] {
        std::array::from_fn(|i| sum[i] + u128::from(weight[i].to_bits()) * u128::from(input[i].to_bits()))
    }

    #[expect(clippy::cast_possible_truncation, reason = "the sum is below 2^112")]
    fn sum_total(self, sum: [u128; 4]) -> [u64; 3] {
        let total: u128 = sum.iter().sum();
        [(total & ((1 << 52) - 1)) as u64, 0, (total >> 52) as u64]
    }

    fn deal(self, p: &[V]) -> (V, V) {
        ([p[0][0], p[0][1], p[1][0], p[1][1]], [p[0][2], p[0][3], p[1][2], p[1][3]])
    }

    fn undeal(self, u: V, v: V, pair: &mut [V]) {
        (pair[0], pair[1]) = self.deal(&[u, v]);
    }

    fn turn(self, _t: usize, u: V, v: V) -> (V, V) {
        ([u[0], v[0], u[2], v[2]], [u[1], v[1], u[3], v[3]])
    }

    fn unturn(self, t: usize, u: V, v: V) -> (V, V) {
        self.turn(t, u, v)
    }

    fn prefetch(self, _at: &[V], _index: usize) {}

    fn load_i32(self, at: &[i32]) -> V {
        std::array::from_fn(|i| f64::from(at[i]))
    }

    fn digit_rows<const P: usize>(
        self,
        weights: [&[[i16; 2]]; 4],
        digits: &[[DigitPlane; P]],
        acc: &mut [[[i32; 8]; P]; 4],
    ) {
        for (acc, row) in acc.iter_mut().zip(weights) {
            *acc = [[0; 8]; P];
            for (w, planes) in row.iter().zip(digits) {
                for (acc, plane) in acc.iter_mut().zip(planes) {
                    for (a, d) in acc.iter_mut().zip(plane.0.as_chunks::<2>().0) {
                        *a += i32::from(w[0]) * i32::from(d[0]) + i32::from(w[1]) * i32::from(d[1]);
                    }
                }
            }
        }
    }

    fn dot4(self, rows: [&[i8]; 4], high: &[i16], low: &[i16]) -> [(i32, i32); 4] {
        let dot = |row: &[i8], x: &[i16]| {
            row.iter().zip(x).fold(0i32, |s, (&a, &b)| s.wrapping_add(i32::from(a) * i32::from(b)))
        };
        rows.map(|row| (dot(row, high), dot(row, low)))
    }
}
