//! How connections are established: SYNs that are held until the server has answered, or not held.

mod beside_a_flood;
mod connections;
mod cookies;
mod errors;
mod fast_open;
mod first_words;
mod flood;
mod forged;
mod forged_icmp;
mod gate;
mod held;
pub mod held_syn;
mod odd;
mod routed;
mod times;
