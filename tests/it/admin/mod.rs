//! What the daemon tells: the admin socket, its commands, metrics and the dashboard.

mod commands;
mod dashboard;
mod exposition;
mod legs;
mod metrics;
mod openapi;
mod place;
mod socket;
mod sums;
mod terminal;
