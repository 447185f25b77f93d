//! What happens to connections when the daemon's process dies, and another one goes on.

mod crash;
mod deaths;
mod half_way;
