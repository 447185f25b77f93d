//! What happens when connections, descriptors or memory run out.

mod connections;
mod faults;
mod reloads;
mod shortage;
mod sources;
mod vanished;
