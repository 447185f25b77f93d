//! The files of the relay's that the table of held SYNs consists of.

#[path = "../../pepd-relay/src/handshake/connect_budget.rs"]
mod connect_budget;
#[path = "../../pepd-relay/src/handshake/event.rs"]
mod event;
#[path = "../../pepd-relay/src/handshake/half_open.rs"]
mod half_open;
#[path = "../../pepd-relay/src/handshake/machine/mod.rs"]
mod machine;
#[path = "../../pepd-relay/src/handshake/syn_history.rs"]
mod syn_history;
#[path = "../../pepd-relay/src/handshake/table/mod.rs"]
pub(crate) mod table;
#[path = "../../pepd-relay/src/handshake/turned_away.rs"]
mod turned_away;
#[path = "../../pepd-relay/src/handshake/verdict.rs"]
pub(crate) mod verdict;
