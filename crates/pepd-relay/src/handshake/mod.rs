//! Connection establishment end to end: the client's SYN waits until its destination has
//! answered.
//!
//! In the order in which a SYN goes through it:
//!
//! - [`queue`] reads the SYNs that the capture holds from the NFQUEUE of one worker;
//! - [`table`] is what all workers know of the flows, and [`machine`] what becomes of one, event by
//!   event ([`event`]);
//! - [`connect`] dials the destination from the client's own address and port, and says what its
//!   answer means for the client;
//! - [`verdict`] is what becomes of the SYN, told to the capture by the mark that the
//!   [`queued_packet`] goes on with;
//! - the [`answered_leg`] of a SYN that went on to the listener waits in the table until the
//!   listener, whichever worker's it is, accepts the client and claims it;
//! - [`evicted`] is about those that have had to leave the table, and [`expiry`] about those that
//!   nobody waits for any more.
//!
//! [`syn_history`], [`connect_budget`], [`turned_away`] and [`half_open`] are parts of the table.

pub(crate) mod answered_leg;
mod connect;
mod connect_budget;
pub(crate) mod dial_handle;
mod event;
pub(crate) mod evicted;
pub(crate) mod expiry;
mod half_open;
mod machine;
pub(crate) mod queue;
pub(crate) mod queued_packet;
mod syn_history;
pub(crate) mod table;
mod turned_away;
pub(crate) mod verdict;
