//! A guest kernel: Debian's, booted by QEMU, with the host's files in it.
//!
//! Some kernels lack what a test needs (`ipip`, `netem`, a congestion control), and every
//! machine is busy at times. [`Guest::run`] boots a Debian kernel under software emulation,
//! runs one command in it as root and gives back its output, status and results. The guest
//! sees the host's `/` read-only with memory on top, so that it needs no disk image: what is
//! installed and built on the host is there, and nothing it does reaches the host, except what
//! it writes to the folder named by `PEPD_RESULTS`.
//!
//! With [`Clock::Virtual`] the guest's clock counts its own instructions and skips idle time:
//! what it measures does not depend on how busy the host is, and waiting costs nothing.
//! Reading a file from the host is the exception, since the clock runs on meanwhile;
//! [`Guest::copy`] brings into memory beforehand what a measurement will read.

mod copies;
mod error;
mod guest;
mod initramfs;
mod kernel;
mod machine;
mod outcome;
mod programs;
mod run;
mod script;
mod session;

pub use error::{Error, MissingPackages, Result};
pub use guest::{Clock, Guest, Mebibytes};
pub use kernel::{Kernel, KernelPackage};
pub use outcome::{Ended, RESULTS, Run};
pub use programs::require_programs;
