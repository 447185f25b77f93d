//! What happens when connections, descriptors or memory run out.

mod connections;
mod shortage;
mod sources;
