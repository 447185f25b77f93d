//! Policy routing, in reading order: the numbers (`ids`), the rules and routes as data (`item`) and
//! as messages (`codec`), the kernel's own (`netlink`), which campus is reached through which
//! tunnel (`next_hop`), and initial windows on copies of the host's routes (`initcwnd`), which
//! change as those do (`follow`).

mod codec;
pub(crate) mod error;
pub(crate) mod follow;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod ids;
pub(crate) mod initcwnd;
pub(crate) mod item;
pub(crate) mod netlink;
pub(crate) mod next_hop;
