//! The self-test notices an instruction that computes a single lane wrongly.

use super::super::{fault, float, integer};
use crate::{Isa, selftest};

#[test]
fn the_self_test_notices_a_fault_in_any_instruction_and_lane() {
    let isa = Isa::avx512().expect("emulated");
    let names = || float::NAMES.iter().chain(integer::NAMES);
    assert!(names().count() >= 30);
    let mut unnoticed = vec![];
    for &name in names() {
        for lane in [0, 7] {
            fault::plant(Some((name, lane)));
            let found = selftest::tests::found(isa);
            fault::plant(None);
            if found.is_none() {
                unnoticed.push((name, lane));
            }
        }
    }
    assert!(unnoticed.is_empty(), "wrong and unnoticed: {unnoticed:?}");
    assert_eq!(selftest::tests::found(isa), None);
}
