//! The kernel state that pepd plans, installs, verifies and removes, without a daemon.

mod choices;
mod gate;
mod gate_descriptors;
mod hold;
mod hold_acks;
mod lifecycle;
mod netns;
mod packets;
mod plan;
mod refusals;
mod world;
