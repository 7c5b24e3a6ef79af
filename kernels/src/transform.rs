//! The passes of the transforms, written once over [`Lanes`], with the bound of every value.
//!
//! Bounds are in units of q. A factor x must be below 2^52, so at most [`Room::limit`]; then a product has
//! |r| <= 1/2 + |x|·2^-54 (module `cpu`); and a value must be below 2^53. The smaller q, the fewer sums must be reduced.

use crate::{
    cpu::{Field, Lanes, f64_of},
    ntt::Twiddles,
};
use std::ops::Range;

/// How large values may grow, in units of q.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// The largest factor: 2^52/q, at least 2.
    pub(crate) limit: f64,
}

impl Room {
    pub(crate) fn new(q: u64) -> Self {
        Self { limit: f64_of(1 << 52) / f64_of(q) }
    }

    /// The bound of a product of a factor bounded by `x`: x·q·2^-54 is x/(4·limit).
    fn product(self, x: f64) -> f64 {
        0.5 + x / (4.0 * self.limit)
    }

    /// The bound after one forward butterfly stage.
    fn stage(self, x: f64) -> f64 {
        x + self.product(x)
    }

    /// What a forward pass leaves at most. With x = 1.9 and limit 2, and two rows reduced: the sums are below
    /// 1/2 + product(1.9) = 1.24, the outputs below 1.24 + product(1.24) = 1.9.
    fn steady(self) -> f64 {
        0.95 * self.limit
    }
}

/// Forward stages of `groups` (m from groups.start until before groups.end, doubling) over `data`, whose
/// values are bounded by `bound`; returns the new bound, at most the limit. Each group must be at least one block.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn forward_rows<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    (room, tw): (Room, &Twiddles),
    data: &mut [L::Block],
    groups: Range<usize>,
    mut bound: f64,
) -> f64 {
    let mut m = groups.start;
    let stages = (groups.end / m).trailing_zeros();
    if stages % 2 == 1 {
        let reduce = room.stage(bound) > room.steady();
        for (i, chunk) in data.chunks_exact_mut(data.len() / m).enumerate() {
            let (w, wq) = factor(l, tw, m + i);
            let (a, b) = chunk.split_at_mut(chunk.len() / 2);
            for (a, b) in a.iter_mut().zip(b) {
                let u = l.load(a);
                let u = if reduce { l.reduce(f, u) } else { u };
                let v = l.mul(f, l.load(b), w, wq);
                l.store(l.add(u, v), a);
                l.store(l.sub(u, v), b);
            }
        }
        bound = if reduce { 0.5 + room.product(bound) } else { room.stage(bound) };
        m *= 2;
    }
    while m < groups.end {
        if room.stage(room.stage(bound)) <= room.steady() {
            forward_pass::<L, false>(l, f, tw, data, m);
            bound = room.stage(room.stage(bound));
        } else {
            forward_pass::<L, true>(l, f, tw, data, m);
            bound = room.stage(0.5 + room.product(bound));
        }
        m *= 4;
    }
    debug_assert!(bound <= room.limit);
    bound
}

/// Twiddle `k` in all lanes, and its quotient by q.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn factor<L: Lanes>(l: L, tw: &Twiddles, k: usize) -> (L::V, L::V) {
    (l.splat(tw.w[k]), l.splat(tw.wq[k]))
}

/// The factors of the stage with t = 2^log_t, a vector for each pair of vectors.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn spread<L: Lanes>(tw: &Twiddles, log_t: usize) -> (&[L::Block], &[L::Block]) {
    let s = &tw.spread[log_t];
    (bytemuck::cast_slice(&s.w), bytemuck::cast_slice(&s.wq))
}

/// Stages m and 2m.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn forward_pass<L: Lanes, const REDUCE: bool>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block], m: usize) {
    let len = data.len() / m;
    for (i, chunk) in data.chunks_exact_mut(len).enumerate() {
        let k = m + i;
        let (w1, w2, w3) = (factor(l, tw, k), factor(l, tw, 2 * k), factor(l, tw, 2 * k + 1));
        let (a, c) = chunk.split_at_mut(len / 2);
        let ((a, b), (c, d)) = (a.split_at_mut(len / 4), c.split_at_mut(len / 4));
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            let (mut x0, mut x1) = (l.load(a), l.load(b));
            if REDUCE {
                (x0, x1) = (l.reduce(f, x0), l.reduce(f, x1));
            }
            let y2 = l.mul(f, l.load(c), w1.0, w1.1);
            let y3 = l.mul(f, l.load(d), w1.0, w1.1);
            let z1 = l.mul(f, l.add(x1, y3), w2.0, w2.1);
            let z3 = l.mul(f, l.sub(x1, y3), w3.0, w3.1);
            let (z0, z2) = (l.add(x0, y2), l.sub(x0, y2));
            l.store(l.add(z0, z1), a);
            l.store(l.sub(z0, z1), b);
            l.store(l.add(z2, z3), c);
            l.store(l.sub(z2, z3), d);
        }
    }
}

/// The forward stages inside a vector: t = WIDTH/2 down to 1. Input at most the limit, output below 2.7.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn forward_lanes<L: Lanes>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block]) {
    let tables = [spread::<L>(tw, 0), spread::<L>(tw, 1), spread::<L>(tw, 2)];
    for (p, pair) in data.chunks_exact_mut(2).enumerate() {
        let (mut u, mut v) = l.deal(pair);
        let mut t = L::WIDTH / 2;
        loop {
            // The factor is at most the limit and the other is reduced: outputs stay below 1/2 + 3/4.
            let (w, wq) = tables[t.trailing_zeros() as usize];
            let r = l.mul(f, v, l.load(&w[p]), l.load(&wq[p]));
            u = if t == L::WIDTH / 2 { l.reduce(f, u) } else { u };
            (u, v) = (l.add(u, r), l.sub(u, r));
            if t == 1 {
                break;
            }
            (u, v) = l.turn(t, u, v);
            t /= 2;
        }
        // 1.25, then 1.25 + product(1.25) = 1.91, and with eight lanes 1.91 + product(1.91) = 2.65 <= 4.
        while t < L::WIDTH / 2 {
            t *= 2;
            (u, v) = l.unturn(t, u, v);
        }
        l.undeal(u, v, pair);
    }
}

/// The inverse stages inside a vector: t = 1 up to before `until` (at most WIDTH). Input below 1; returns the bound of the
/// output, at most half the limit.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn inverse_lanes<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    (room, tw): (Room, &Twiddles),
    data: &mut [L::Block],
    until: usize,
) -> f64 {
    if until < 2 {
        return 1.0;
    }
    // Each stage doubles a bound, and differences are factors.
    let grown = f64_of(until.min(L::WIDTH) as u64);
    if 2.0 * grown > room.limit {
        inverse_pairs::<L, true>(l, f, tw, data, until);
        1.0
    } else {
        inverse_pairs::<L, false>(l, f, tw, data, until);
        grown
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn inverse_pairs<L: Lanes, const REDUCE: bool>(
    l: L,
    f: &Field<L::V>,
    tw: &Twiddles,
    data: &mut [L::Block],
    until: usize,
) {
    let tables = [spread::<L>(tw, 0), spread::<L>(tw, 1), spread::<L>(tw, 2)];
    for (p, pair) in data.chunks_exact_mut(2).enumerate() {
        let (mut u, mut v) = l.deal(pair);
        let mut t = L::WIDTH / 2;
        while t > 1 {
            (u, v) = l.turn(t, u, v);
            t /= 2;
        }
        loop {
            if t < until {
                let (w, wq) = tables[t.trailing_zeros() as usize];
                let d = l.sub(u, v);
                u = l.add(u, v);
                u = if REDUCE { l.reduce(f, u) } else { u };
                v = l.mul(f, d, l.load(&w[p]), l.load(&wq[p]));
            }
            if t == L::WIDTH / 2 {
                break;
            }
            t *= 2;
            (u, v) = l.unturn(t, u, v);
        }
        l.undeal(u, v, pair);
    }
}

/// Inverse stages of `groups`, from the last m before groups.end down to groups.start. Input and output at most half the
/// limit; `bound` is that of the input.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn inverse_rows<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    (room, tw): (Room, &Twiddles),
    data: &mut [L::Block],
    groups: Range<usize>,
    mut bound: f64,
) {
    let mut m = groups.end;
    while m >= 4 * groups.start {
        m /= 4;
        if 8.0 * bound <= room.limit {
            inverse_pass::<L, false>(l, f, tw, data, m);
            bound *= 4.0;
        } else {
            inverse_pass::<L, true>(l, f, tw, data, m);
            bound = 1.0;
        }
    }
    if m > groups.start {
        m /= 2;
        let reduce = 4.0 * bound > room.limit;
        for (i, chunk) in data.chunks_exact_mut(data.len() / m).enumerate() {
            let (w, wq) = factor(l, tw, m + i);
            let (a, b) = chunk.split_at_mut(chunk.len() / 2);
            for (a, b) in a.iter_mut().zip(b) {
                let (u, v) = (l.load(a), l.load(b));
                let sum = l.add(u, v);
                l.store(if reduce { l.reduce(f, sum) } else { sum }, a);
                l.store(l.mul(f, l.sub(u, v), w, wq), b);
            }
        }
    }
}

/// Inverse stages 2m and m. With inputs up to half the limit differences are factors, whose products are below 3/4.
/// Sums are reduced to 1/2; then sums of sums are below 1, and sums of products below 3/2, which are reduced once
/// more: outputs are below 1. Without reductions outputs are below four times the inputs.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn inverse_pass<L: Lanes, const REDUCE: bool>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block], m: usize) {
    let reduce = |v| if REDUCE { l.reduce(f, v) } else { v };
    let len = data.len() / m;
    for (i, chunk) in data.chunks_exact_mut(len).enumerate() {
        let k = m + i;
        let (w1, w2, w3) = (factor(l, tw, k), factor(l, tw, 2 * k), factor(l, tw, 2 * k + 1));
        let (a, c) = chunk.split_at_mut(len / 2);
        let ((a, b), (c, d)) = (a.split_at_mut(len / 4), c.split_at_mut(len / 4));
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            let (x0, x1, x2, x3) = (l.load(a), l.load(b), l.load(c), l.load(d));
            let y1 = l.mul(f, l.sub(x0, x1), w2.0, w2.1);
            let y3 = l.mul(f, l.sub(x2, x3), w3.0, w3.1);
            let (y0, y2) = (reduce(l.add(x0, x1)), reduce(l.add(x2, x3)));
            l.store(l.add(y0, y2), a);
            l.store(reduce(l.add(y1, y3)), b);
            l.store(l.mul(f, l.sub(y0, y2), w1.0, w1.1), c);
            l.store(l.mul(f, l.sub(y1, y3), w1.0, w1.1), d);
        }
    }
}
