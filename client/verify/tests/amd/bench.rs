//! A domain whose root is our own, and evidence of a connection in it.

use super::{MAKER, certificate};
use attest::binding::{Binding, Parts};
use attest_verify::policy::Policy;
use attest_verify::{Anchor, Outcome};
use proto::v1::{Evidence, RuntimeValues};

/// Not the hardware's domain, so that its evidence never counts for that.
#[derive(Debug)]
pub(crate) struct Bench;

impl attest::Domain for Bench {
    const MODE: &'static str = "bench";
    const TAG: &'static [u8] = b"bench/attest";
    const ALPN: &'static [u8] = b"bench-attest";
    const EXPORTER: &'static [u8] = b"EXPORTER-bench";
    const RELEASE: &'static [u8] = b"bench/key-release";
    const BANNER: Option<&'static str> = Some("BENCH");
}

impl Anchor for Bench {
    fn amd_roots() -> Option<Vec<Vec<u8>>> {
        Some(vec![certificate(&MAKER.root(), &MAKER.ark)])
    }
}

/// 1 January 2025.
pub(crate) const NOW: u64 = 1_735_689_600;

/// Accepts the recorded report of a Milan, and asks for no revocation list: none was recorded.
pub(crate) const MILAN: &str = r#"
products = ["Milan"]
signers = ["vcek"]
vmpl = [0]
measurement = ["7a1e5c266c0108dbc9bb94fa926951320940915d0aafb42464bd88b579ea158d3e1a0dc39b2c60bd95b9c480cd81841f"]
require_crl = false
[tcb.Milan]
bootloader = 3
tee = 0
snp = 8
microcode = 115
[guest]
smt = true
single_socket = false
"#;

/// What a runtime says of itself.
pub(crate) fn values() -> RuntimeValues {
    RuntimeValues {
        hpke_key: vec![1; 1216].into(),
        receipt_key: vec![2; 32].into(),
        params_digest: vec![3; 32].into(),
        model_digest: vec![4; 32].into(),
        config_digest: vec![5; 32].into(),
        not_after: NOW + 3600,
        software: "1.0".to_owned(),
    }
}

/// Of the connection whose nonce is 32 times this byte.
pub(crate) fn binding(nonce: u8) -> Binding {
    let values = values();
    Binding::new::<Bench>(Parts { nonce: &[nonce; 32], exporter: &[8; 32], spki: &[9; 32], values: &values })
}

/// A whole policy: `snp` is the section without its name.
pub(crate) fn policy_of(platform: &str, snp: &str, more: &str) -> Policy {
    let snp = snp.replace("[tcb.", "[snp.tcb.").replace("[guest]", "[snp.guest]");
    let (params, model) = ("03".repeat(32), "04".repeat(32));
    let text = format!(
        "version = 1\nplatforms = [\"{platform}\"]\n[runtime]\nparams_digest = [\"{params}\"]\n\
         model_digest = [\"{model}\"]\nconfig_digest = \"any\"\n[snp]\n{snp}\n{more}"
    );
    Policy::parse(&text).unwrap()
}

/// Checks evidence on the connection of this nonce, with nothing at hand but what came with it.
pub(crate) fn verified<D: Anchor>(evidence: &Evidence, nonce: u8, policy: &Policy) -> Outcome<D> {
    let collateral = attest_verify::snp::Bundle::default();
    let floor = attest_verify::Floor::default();
    attest_verify::verify::<D>(evidence, &binding(nonce), policy, &collateral, &floor, NOW)
}
