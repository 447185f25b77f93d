//! The `pepd` command.

#![forbid(unsafe_code)]

fn main() {}
