//! pepd's kernel state: planned, applied, verified and undone.

#![forbid(unsafe_code)]
