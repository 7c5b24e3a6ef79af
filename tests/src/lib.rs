//! End-to-end tests with the real binaries: processes, certificates, hostile peers.

#![forbid(unsafe_code)]
