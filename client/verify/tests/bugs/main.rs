//! What went wrong in other attestation software, by public reports, each as a test of ours. The numbers are those of
//! our list of such reports; those missing here are about the network, the channel, or sources of evidence.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../support/vectors.rs"]
mod support;

mod collateral;
mod platform;
mod report;

const V4: &str = "dcap-qvl-crate/tdx_quote";
const V4_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_collateral.json";
const V5: &str = "dcap-qvl-crate/tdx_quote_td15ex";
const V5_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_td15ex_collateral.json";
const OLD: &str = "dcap-qvl-crate/tdx_quote_outdated";
const OLD_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_outdated_collateral.json";
const GCP_COLLATERAL: &str = "flashbots-attested-tls/json/gcp_00806f050000_2026-06-30.json";
const COS: &str = "go-tdx-guest/cos-113-tdx-quote.dat";
