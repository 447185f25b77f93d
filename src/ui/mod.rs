//! How figures and tables are written for people, on every screen alike.

pub mod format;
pub mod labels;
pub mod output;
pub mod table;
