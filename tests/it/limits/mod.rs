//! What happens when connections, descriptors or memory run out.

mod connections;
mod exhaustion;
mod faults;
mod memory;
mod pipes;
mod reloads;
mod shortage;
mod sources;
mod vanished;
