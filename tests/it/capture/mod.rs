//! Which connections are taken out of the traffic, and what of them both hosts still see.

mod asymmetric;
mod dscp;
mod firewall;
mod measure;
mod nat;
mod transparency;
