//! How live connections move from one box to another: what the boxes say to each other, and what each has to
//! do. No I/O, no clock.
//!
//! A move goes like this. The box that gives offers connections, and the other one says which of them it
//! would take. They are frozen, which is to say that the other box holds what comes for them; taken out of
//! their sockets and pipes; sent over; and put into silent sockets there. Then the other box is told to serve,
//! and the sockets here are closed without a word.
//!
//! **Who serves.** Until the other box is told to serve, each failure leaves this one serving: it thaws what
//! it has frozen, and what the other box has is discarded without a word. From then on this one serves only
//! if the other says that it does not, and never will. So never two boxes serve a connection, whatever is
//! lost between them, fails, or dies. Nobody serves one that
//!
//! - the other box has been told to serve and could not (its kernel had no memory for it),
//! - had been given to a box that was lost then, or that could not be asked for a minute, or
//! - had been given by a process that died before the other box had heard of it.
//!
//! **What cannot move** stays, and is told why: connections that are being opened, that have failed, whose
//! urgent byte is in hand, or of which one leg is mending a loss.
//!
//! - [`wire`]: what is said, as bounded frames;
//! - [`session`]: in which it is said: two boxes that share a key, and nobody else;
//! - [`machine`]: the two sides of a move.

#![forbid(unsafe_code)]

pub mod machine;
pub mod session;
pub mod wire;

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
