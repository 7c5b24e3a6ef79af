//! The daemon as a peer sees it: the real binary, over mutual TLS and over loopback plaintext.

mod bulk;
mod harness;
mod jobs;
mod leaving;
mod matrices;
mod memory;
mod online;
mod peer;
mod start;
