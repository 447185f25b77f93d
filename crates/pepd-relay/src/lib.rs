//! pepd's data path: capture, legs, the relay and drain.

#![forbid(unsafe_code)]
