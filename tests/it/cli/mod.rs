//! The command line: what is asked without a daemon.

mod answers;
mod commands;
mod doctor;
