//! `pepd move`: live connections go from one box to another, while both their ends read and write as ever.

mod crowd;
mod drains;
mod ends;
mod faults;
pub mod ground;
mod kinds;
mod paths;
mod refused;
mod survives;
mod translated;
