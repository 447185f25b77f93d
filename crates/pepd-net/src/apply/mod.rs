//! A plan in the kernel, in reading order: put there whole or not at all (`transaction`), compared
//! with what is there (`verify`), rid of what an earlier plan left (`stale`), held by the daemon
//! (`installed`), and removed (`remove`).

pub(crate) mod error;
pub(crate) mod installed;
pub(crate) mod remove;
mod stale;
mod transaction;
mod verify;
