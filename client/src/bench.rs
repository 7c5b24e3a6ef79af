//! `bifrost bench`: what serving and delegating cost, measured from outside.
//!
//! [`serve`] puts load on an OpenAI endpoint, as its clients would, [`decode`] compares policies and protocols over
//! gRPC. Both print a table, or one JSON object, and draw what they found.

pub mod decode;
mod events;
mod figures;
mod http;
mod load;
mod memory;
mod output;
mod plot;
mod pool;
mod random;
pub mod serve;
mod target;
mod text;
