//! The passes of the transforms, written once over [`Lanes`], with the bound of every value.
//!
//! Bounds are in units of q. A product has |r| <= 1/2 + |x|/8 (module `cpu`: 1/2 + |x|·2^-54 with q < 2^51),
//! a factor must be at most 2, any value at most 4.

use crate::{
    cpu::{Field, Lanes},
    ntt::Twiddles,
};
use std::ops::Range;

/// The bound of a product of a factor bounded by `x`.
const fn product(x: f64) -> f64 {
    0.5 + x / 8.0
}

/// The bound after one butterfly stage.
const fn stage(x: f64) -> f64 {
    x + product(x)
}

/// What a radix-4 pass needs of its input, and leaves, when it reduces the two rows that are not multiplied.
/// With x = 1.9: the sums are below 1/2 + product(1.9) = 1.24, the outputs below 1.24 + product(1.24) = 1.9.
const STEADY: f64 = 1.9;

/// Forward stages of `groups` (m from groups.start until before groups.end, doubling) over `data`, whose
/// values are bounded by `bound`; returns the new bound, at most 2. Each group must be at least one block.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn forward_rows<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    tw: &Twiddles,
    data: &mut [L::Block],
    groups: Range<usize>,
    mut bound: f64,
) -> f64 {
    let mut m = groups.start;
    let stages = (groups.end / m).trailing_zeros();
    if stages % 2 == 1 {
        let reduce = stage(bound) > STEADY;
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
        bound = if reduce { 0.5 + product(bound) } else { stage(bound) };
        m *= 2;
    }
    while m < groups.end {
        if stage(bound) <= 2.0 && stage(stage(bound)) <= STEADY {
            forward_pass::<L, false>(l, f, tw, data, m);
            bound = stage(stage(bound));
        } else {
            forward_pass::<L, true>(l, f, tw, data, m);
            bound = stage(0.5 + product(bound));
        }
        m *= 4;
    }
    debug_assert!(bound <= 2.0);
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

/// The forward stages inside a vector: t = WIDTH/2 down to 1. Output below 2.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn forward_lanes<L: Lanes>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block], bound: f64) {
    debug_assert!(bound <= 2.0);
    let tables = [spread::<L>(tw, 0), spread::<L>(tw, 1), spread::<L>(tw, 2)];
    for (p, pair) in data.chunks_exact_mut(2).enumerate() {
        let (mut u, mut v) = l.deal(pair);
        let mut t = L::WIDTH / 2;
        loop {
            // The factor is at most 2 and the other is reduced: outputs stay below 1/2 + 3/4.
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

/// The inverse stages inside a vector: t = 1 up to before `until` (at most WIDTH). Input and output below 1.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn inverse_lanes<L: Lanes>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block], until: usize) {
    if until < 2 {
        return;
    }
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
                u = l.reduce(f, l.add(u, v));
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

/// Inverse stages of `groups`, from the last m before groups.end down to groups.start. Input and output below 1.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn inverse_rows<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    tw: &Twiddles,
    data: &mut [L::Block],
    groups: Range<usize>,
) {
    let mut m = groups.end;
    while m >= 4 * groups.start {
        m /= 4;
        inverse_pass(l, f, tw, data, m);
    }
    if m > groups.start {
        m /= 2;
        for (i, chunk) in data.chunks_exact_mut(data.len() / m).enumerate() {
            let (w, wq) = factor(l, tw, m + i);
            let (a, b) = chunk.split_at_mut(chunk.len() / 2);
            for (a, b) in a.iter_mut().zip(b) {
                let (u, v) = (l.load(a), l.load(b));
                l.store(l.reduce(f, l.add(u, v)), a);
                l.store(l.mul(f, l.sub(u, v), w, wq), b);
            }
        }
    }
}

/// Inverse stages 2m and m. With inputs below 1: differences below 2 are multiplied (3/4), sums are reduced to
/// 1/2; then sums of sums are below 1, and sums of products below 3/2, which are reduced once more.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn inverse_pass<L: Lanes>(l: L, f: &Field<L::V>, tw: &Twiddles, data: &mut [L::Block], m: usize) {
    let len = data.len() / m;
    for (i, chunk) in data.chunks_exact_mut(len).enumerate() {
        let k = m + i;
        let (w1, w2, w3) = (factor(l, tw, k), factor(l, tw, 2 * k), factor(l, tw, 2 * k + 1));
        let (a, c) = chunk.split_at_mut(len / 2);
        let ((a, b), (c, d)) = (a.split_at_mut(len / 4), c.split_at_mut(len / 4));
        for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
            let (x0, x1, x2, x3) = (l.load(a), l.load(b), l.load(c), l.load(d));
            let y0 = l.reduce(f, l.add(x0, x1));
            let y1 = l.mul(f, l.sub(x0, x1), w2.0, w2.1);
            let y2 = l.reduce(f, l.add(x2, x3));
            let y3 = l.mul(f, l.sub(x2, x3), w3.0, w3.1);
            l.store(l.add(y0, y2), a);
            l.store(l.reduce(f, l.add(y1, y3)), b);
            l.store(l.mul(f, l.sub(y0, y2), w1.0, w1.1), c);
            l.store(l.mul(f, l.sub(y1, y3), w1.0, w1.1), d);
        }
    }
}
