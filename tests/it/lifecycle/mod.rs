//! The daemon as a process: start, reload, end, what happens to its box, and systemd.

mod confinement;
mod endurance;
mod logging;
mod reload;
mod service;
mod start_and_end;
