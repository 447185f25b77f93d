//! A reader of one NFQUEUE: packets that the kernel holds until they get a verdict.
//!
//! Verdicts may be given in any order and from any thread, which none of the crates that were tried
//! allows: a held SYN waits for an answer from afar while others come and go. The protocol is two
//! message types on [`nfnetlink`](crate::nfnetlink).

mod message;
mod queue;

pub use message::{Hook, Packet, Verdict, packets};
pub use queue::{Kind, MESSAGE_BYTES, Queue, Recipient, Room};
