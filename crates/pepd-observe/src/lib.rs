//! What pepd counts and says: counters and rate-limited log lines.

#![forbid(unsafe_code)]
