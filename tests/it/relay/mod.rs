//! What the two legs carry: bytes, ends, urgent data, and how fast.

mod advised;
mod backpressure;
mod buffers;
mod chosen;
pub(crate) mod endings;
mod find_rate;
mod fixed_rate;
mod interactive;
mod known;
mod late;
mod legs;
mod other_way;
mod own_links;
mod phases;
pub(crate) mod resets;
mod shares;
mod swarm;
mod transfers;
mod two_legs;
mod urgent;
mod windows;
