//! The emulated link and `netem`, side by side on the same path.

pub mod flow;
pub mod losses;
pub mod path;
pub mod statistics;
pub mod table;
