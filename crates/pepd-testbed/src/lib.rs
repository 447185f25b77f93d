//! Namespaces and topologies for pepd's tests, demo and benchmarks.

#![forbid(unsafe_code)]

pub mod link;
