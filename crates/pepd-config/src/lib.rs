//! pepd's configuration: TOML to typed, resolved and diagnosed, without I/O.

#![forbid(unsafe_code)]
