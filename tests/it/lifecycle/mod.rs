//! The daemon as a process: start, reload, end, what happens to its box, and systemd.

mod answered_in_vain;
mod blackout;
mod confinement;
mod endurance;
mod hanging;
mod lock;
mod logging;
mod reload;
mod service;
mod start_and_end;
mod systemd;
mod time_wait;
mod unreadable;
