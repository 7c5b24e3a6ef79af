//! An instruction that computes one lane wrongly, for the test that the self-test notices.

/// What `name` computed, with the fault that this thread has planted.
#[cfg(not(test))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is nothing")]
pub(super) fn pass<T>(_name: &str, result: T) -> T {
    result
}

#[cfg(test)]
pub(super) use planted::{pass, plant};

#[cfg(test)]
mod planted {
    use super::super::{__m128i, __m256i, __m512d, __m512i};
    use std::cell::Cell;

    thread_local! {
        /// The name of an intrinsic, and a lane.
        static FAULT: Cell<Option<(&'static str, usize)>> = const { Cell::new(None) };
    }

    /// From now on the intrinsic computes this lane wrongly on this thread; none with `None`.
    pub(in super::super) fn plant(fault: Option<(&'static str, usize)>) {
        FAULT.set(fault);
    }

    /// What `name` computed, with the fault that this thread has planted.
    pub(in super::super) fn pass<T: Spoil>(name: &str, result: T) -> T {
        match FAULT.get() {
            Some((at, lane)) if at == name => result.spoil(lane),
            _ => result,
        }
    }

    /// A result that can be wrong.
    pub(in super::super) trait Spoil {
        /// Another value in this lane.
        fn spoil(self, lane: usize) -> Self;
    }

    /// Two bits, so that a wrong index and a wrong sum are both wrong.
    const BITS: u64 = (1 << 20) + 1;

    impl Spoil for __m512d {
        fn spoil(mut self, lane: usize) -> Self {
            let x = &mut self.0[lane];
            *x = if *x == 0.0 { 1.0 } else { f64::from_bits(x.to_bits() ^ (1 << 51)) };
            self
        }
    }

    impl Spoil for __m512i {
        fn spoil(mut self, lane: usize) -> Self {
            self.0[lane] ^= BITS;
            self
        }
    }

    impl Spoil for __m256i {
        fn spoil(mut self, lane: usize) -> Self {
            self.0[lane / 2] ^= BITS << (32 * (lane % 2));
            self
        }
    }

    impl Spoil for __m128i {
        fn spoil(mut self, lane: usize) -> Self {
            self.0[0] ^= 1 << (8 * lane);
            self
        }
    }

    impl Spoil for u8 {
        fn spoil(self, lane: usize) -> Self {
            self ^ (1 << lane)
        }
    }

    impl Spoil for i64 {
        fn spoil(self, _lane: usize) -> Self {
            self ^ BITS.cast_signed()
        }
    }

    impl Spoil for i32 {
        fn spoil(self, lane: usize) -> Self {
            self ^ (1 << lane)
        }
    }
}
