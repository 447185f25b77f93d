//! What happens when connections, descriptors or memory run out.

mod connections;
mod faults;
mod shortage;
mod sources;
