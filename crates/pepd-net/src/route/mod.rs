//! Policy routing: the rules and routes of pepd's, as data and in the kernel.

mod codec;
pub(crate) mod initcwnd;
mod item;
pub(crate) mod netlink;
pub(crate) mod next_hop;

pub(crate) use item::Item;
