//! Reports: a table on the terminal, figures, and a page with all of them.

mod table;

pub use table::table;
