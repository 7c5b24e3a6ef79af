//! The runtime and the client in a world whose hardware is simulated.
//!
//! Everything here runs the production code over simulated quotes. Production binaries contain nothing of it: it is a crate
//! of its own, which they do not depend on, and a test of the walls watches that.

#![forbid(unsafe_code)]

mod world;

pub use world::SimulatedWorld;
