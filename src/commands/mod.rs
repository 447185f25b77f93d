//! What each subcommand does, except for the daemon itself and those with a folder of their own.

pub mod check;
pub mod client;
pub mod completions;
pub mod control;
pub mod down;
pub mod endpoint;
pub mod flow;
pub mod flows;
pub mod man;
pub mod model;
pub mod move_away;
pub mod ready;
pub mod run;
pub mod show;
pub mod status;
pub mod upgrade;
