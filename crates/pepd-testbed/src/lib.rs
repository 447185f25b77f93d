//! Namespaces, topologies and a guest kernel for pepd's tests, demo and benchmarks.
//!
//! Everything runs on the real kernel: a [`Topology`] is a handful of network namespaces
//! joined by veth pairs or emulated links, [`Pepd`] is the real binary started in one of them, and
//! the programs around it (nginx, sshd, curl) are the real ones. All of it is removed when the
//! value is dropped, panics included; what a killed process left behind is swept by the next one.
//! [`vm`] runs a command, or the tests, in another kernel than the running one.
//!
//! ```no_run
//! use pepd_testbed::{Family, Pepd, World};
//!
//! # fn main() -> anyhow::Result<()> {
//! let world = World::standard()?;
//! let pepd = Pepd::start("target/debug/pepd", world.hb(), &World::config())?;
//! let nginx = pepd_testbed::Nginx::start(world.server())?;
//! nginx.put_file("hello", b"hello")?;
//! let mut curl = world.client().command("curl");
//! curl.arg(nginx.url(World::server_address(Family::V4), "hello"));
//! # drop(pepd);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod admin;
mod browser;
#[cfg(target_arch = "x86_64")]
pub mod faults;
mod fleet;
pub mod forge;
pub mod link;
pub mod modem;
mod netns;
mod pepd;
mod process;
mod require;
mod servers;
pub mod soak;
mod sockets;
mod stage;
mod topology;
pub mod traffic;
pub mod vm;
mod wait;
mod world;

pub use admin::ask;
pub use browser::Browser;
pub use fleet::{Fleet, FleetBuilder};
pub use netns::Netns;
pub use pepd::{Pepd, PepdBuilder, daemon_of};
pub use process::{Finished, Process, install, raise_descriptor_limit, run};
pub use require::{Requirement, missing, report_missing, report_skip};
pub use servers::{Iperf3, Nginx, Sshd};
pub use sockets::{accepted, established, splits, unread};
pub use stage::{Stage, Via};
pub use topology::{Link, Topology, TopologyBuilder};
pub use wait::{Deadline, wait_until};
pub use world::{Family, World};
