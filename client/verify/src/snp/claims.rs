//! What a report says, against a policy.

use super::product::Product;
use super::report::Report;
use super::tcb::Tcb;
use crate::Factor;
use crate::hex::{Hex, one_of};
use crate::policy::Snp;

/// Everything but who signed and what about; `product` as certified, or else as the report says.
pub(super) fn judge(report: &Report, product: Option<Product>, policy: &Snp) -> Vec<Factor> {
    let mut out = guest(report, policy);
    out.extend(levels(report, product, policy));
    let fields = report.fields();
    out.push(listed("snp.measurement", Some(&policy.measurement), Hex(fields.measurement)));
    out.push(listed("snp.host_data", policy.host_data.as_deref(), Hex(fields.host_data)));
    out.push(listed("snp.id_key_digest", policy.id_key_digest.as_deref(), Hex(fields.id_key_digest)));
    out.push(listed("snp.author_key_digest", policy.author_key_digest.as_deref(), Hex(fields.author_key_digest)));
    out.push(listed("snp.family_id", policy.family_id.as_deref(), Hex(fields.family_id)));
    out.push(listed("snp.image_id", policy.image_id.as_deref(), Hex(fields.image_id)));
    out.push(listed("snp.chip_allowed", policy.chip_id.as_deref(), Hex(fields.chip_id)));
    let vmpl = fields.vmpl;
    out.push(Factor::judged("snp.vmpl", policy.vmpl.contains(&vmpl), one_of(&policy.vmpl), vmpl.to_string()));
    let svn = fields.guest_svn;
    out.push(Factor::judged(
        "snp.guest_svn",
        svn >= policy.min_guest_svn,
        at_least(policy.min_guest_svn),
        svn.to_string(),
    ));
    out.push(Factor::noted("snp.firmware", format!("{}, committed {}", fields.current, fields.committed)));
    out.push(Factor::noted("snp.platform", format!("{:#x}", report.platform_bits())));
    out
}

/// The guest policy, AMD 56860 table "POLICY".
fn guest(report: &Report, policy: &Snp) -> Vec<Factor> {
    let (found, asked) = (report.fields().policy, &policy.guest);
    let bit = |code, asked: bool, found: bool| Factor::judged(code, asked == found, said(asked), said(found));
    let abi = (found.abi_major(), found.abi_minor());
    let least = (u64::from(asked.min_abi_major), u64::from(asked.min_abi_minor));
    let raw = report.policy_bits();
    let reserved = raw & RESERVED_ONE != 0 && raw & RESERVED_ZERO == 0;
    vec![
        bit("snp.guest.debug_off", false, found.debug_allowed()),
        bit("snp.guest.migration", asked.migration, found.migrate_ma_allowed()),
        bit("snp.guest.smt", asked.smt, found.smt_allowed()),
        bit("snp.guest.single_socket", asked.single_socket, found.single_socket_required()),
        bit("snp.guest.cxl", asked.cxl, found.cxl_allowed()),
        Factor::judged(
            "snp.guest.abi",
            abi >= least,
            format!("{}.{} or later", least.0, least.1),
            format!("{}.{}", abi.0, abi.1),
        ),
        Factor::judged("snp.guest.reserved", reserved, "bit 17 set, bits 26 to 63 clear", format!("{raw:#x}")),
    ]
}

/// Reported versions against the floor, and in order: reported, committed, current.
///
/// The signing key derives from the reported version; committed is what the platform can no longer go below, and what it
/// runs is current.
fn levels(report: &Report, product: Option<Product>, policy: &Snp) -> Vec<Factor> {
    let fields = report.fields();
    let (reported, committed, current) =
        (report.reported(), Tcb::from(fields.committed_tcb), Tcb::from(fields.current_tcb));
    let mut out = Vec::new();
    let floor = product.and_then(|product| policy.tcb.get(&product));
    match floor {
        None => out.push(Factor::judged(
            "snp.tcb.floor",
            false,
            "lowest versions in the policy for the product",
            product.map_or("a product that is not known".to_owned(), |product| format!("none for {product}")),
        )),
        Some(floor) => out.extend(
            reported
                .components()
                .into_iter()
                .zip(floor.components())
                .filter(|((name, ..), _)| *name != "fmc" || reported.fmc.is_some() || floor.fmc.is_some())
                .map(|((_, code, found), (.., least))| {
                    Factor::judged(code, found >= least, at_least(least), found.to_string())
                }),
        ),
    }
    let ordered = committed.at_least(&reported) && current.at_least(&committed);
    out.push(Factor::judged(
        "snp.tcb.order",
        ordered,
        "reported no later than committed, committed no later than current",
        format!("reported {reported}; committed {committed}; current {current}"),
    ));
    out
}

/// Whether a value is in the list; a list that is not there judges nothing.
fn listed<const N: usize>(code: &'static str, list: Option<&[Hex<N>]>, found: Hex<N>) -> Factor {
    match list {
        Some(list) => Factor::judged(code, list.contains(&found), one_of(list), found.to_string()),
        None => Factor::noted(code, found.to_string()),
    }
}

fn at_least(least: impl std::fmt::Display) -> String {
    format!("{least} or later")
}

fn said(allowed: bool) -> &'static str {
    if allowed { "yes" } else { "no" }
}

/// Must be one.
const RESERVED_ONE: u64 = 1 << 17;
/// Must be zero; bit 25 is the last that the interface defines.
const RESERVED_ZERO: u64 = u64::MAX << 26;
