//! Which congestion control a leg's new connections have, found out from what its connections meet, and followed.
//!
//! A control that takes every loss for congestion (cubic) is the right one where it is, and so the one to begin
//! with: on a path that is shared it gets its part and no more. Where packets are lost for another reason it hardly
//! sends; that is seen from losses **without a queue**: had the link been full, round trips would have grown before.
//! Then bbr is tried, or find-rate where the link is one's own, and kept if it carries more.
//!
//! - [`Seen`] is what a leg's connections have met lately, and [`Choice::look`] what follows from it;
//! - [`Why`] is the reason of a choice, with its figures.
//!
//! No I/O and no clock: `now` is passed in.

mod evidence;
mod machine;

#[cfg(test)]
mod tests;

pub use self::evidence::Seen;
pub use self::machine::{BARRED, Candidates, Change, Choice, Chosen, REST, Why};
