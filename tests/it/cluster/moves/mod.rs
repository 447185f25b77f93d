//! `pepd move`: live connections go from one box to another, while both their ends read and write as ever.

mod drains;
pub mod ground;
mod kinds;
mod refused;
mod survives;
