//! A simulated TDX platform: real quotes, certificates and collateral, signed by nobody.
//!
//! [`Authority`] stands for the maker of the CPU, [`Platform`] for one machine, [`SimulatedTdx`] for a guest on it. What
//! they produce has the structure of the real thing, so that a whole verifier runs on it, and cannot pass for it:
//! its root is a test root, its [`Simulated`] domain is in every tag, and markers stand where identities and measurements
//! would be. What a simulation shows is protocol, policy and failure paths; it says nothing about hardware.
//!
//! Keys of [`Authority::fixed`] are derived from a constant in the source. Nothing secret may depend on them.

#![forbid(unsafe_code)]

mod authority;
mod certificate;
mod collateral;
mod der;
mod domain;
mod error;
mod instant;
mod key;
mod marker;
mod pck;
mod platform;
mod quote;
mod runtime_log;
mod source;
mod spoil;
mod tcb;
mod td;

pub use authority::Authority;
pub use collateral::{CollateralFlaw, CollateralSpec, Revoked};
pub use dcap_qvl::TcbStatus;
pub use domain::Simulated;
pub use error::SimulatorError;
pub use platform::{Module, Platform, PlatformSpec};
pub use quote::QuoteFlaw;
pub use runtime_log::{extension, replay};
pub use source::SimulatedTdx;
pub use td::{Td15, TdReport};
