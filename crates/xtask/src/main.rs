//! pepd's development commands.

#![forbid(unsafe_code)]

fn main() {}
