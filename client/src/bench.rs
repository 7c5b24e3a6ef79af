//! `bifrost bench`: what serving and delegating cost, measured from outside.
//!
//! [`serve`] puts load on an OpenAI endpoint, as its clients would, [`decode`] compares policies and protocols over
//! gRPC, [`ops`] has the runtime time what it computes itself. Each prints a table, or one JSON object, and draws what it
//! found.

pub mod decode;
mod events;
mod figures;
mod http;
mod load;
mod memory;
pub mod ops;
mod output;
mod plot;
mod pool;
mod random;
pub mod serve;
mod target;
mod text;
