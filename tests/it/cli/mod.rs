//! The command line: what is asked without a daemon.

mod commands;
mod doctor;
