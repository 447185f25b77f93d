//! The `iptables` programs, where nft cannot hold a packet: which rules there are to be (`rules`),
//! and the programs themselves (`process`).

pub(crate) mod process;
pub(crate) mod rules;
