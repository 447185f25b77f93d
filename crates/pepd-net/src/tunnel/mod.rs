//! The tunnels to other helper boxes, in reading order: which there are to be (`spec`), a device as
//! the kernel's messages have it (`link`), and the kernel's own (`devices`).

pub(crate) mod devices;
pub(crate) mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod link;
pub(crate) mod spec;
