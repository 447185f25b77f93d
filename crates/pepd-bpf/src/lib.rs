//! The congestion controls `fixed-rate` and `find-rate`: a leg that keeps to its rate, whatever is lost,
//! which is given or found.
//!
//! Their work is done by a BPF program in the kernel (`src/bpf/leg_rate.bpf.c`, a `struct_ops`
//! of the kernel's `struct tcp_congestion_ops`). This crate loads one for each leg that asks for
//! it, [registers](register) it as a congestion control under a [name](Name) of its own,
//! [removes](remove_left) what a killed daemon may have left, and carries [orders](Order) and
//! [counts](Counts) between the program and whoever finds the rate ([`Steering`]).
//!
//! Without the feature `load` there is no program in it, and asking for one gives nothing but
//! [`Error::NotBuilt`]: building it takes clang.

#![forbid(unsafe_code)]

#[cfg(not(feature = "load"))]
#[path = "absent.rs"]
mod kernel;
#[cfg(feature = "load")]
mod kernel;
mod name;
mod order;
#[cfg(feature = "load")]
mod steering;

#[cfg(not(feature = "load"))]
pub use kernel::Steering;
pub use kernel::{Control, IS_BUILT, probe, register, remove_left};
pub use name::{Name, NetworkNamespace, Use};
pub use order::{Counts, EPOCHS, Order};
#[cfg(feature = "load")]
pub use steering::Steering;

/// The reasons why a control cannot be registered or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This program was built without it.
    #[error(
        "this pepd was built without the congestion controls \"fixed-rate\" and \"find-rate\"; build it with \
         `cargo build --release --features fixed-rate`, for which clang, make, \
         pkgconf, libelf-dev and zlib1g-dev are needed, or write congestion = \"bbr\""
    )]
    NotBuilt,
    /// This process may not load BPF programs.
    #[error(
        "{step}: not permitted; the congestion controls \"fixed-rate\" and \"find-rate\" need CAP_BPF, \
         CAP_PERFMON and CAP_NET_ADMIN at the start (AmbientCapabilities= and \
         SystemCallFilter=bpf in the systemd unit), or run pepd as root; or write \
         congestion = \"bbr\""
    )]
    NotPermitted {
        /// The step that was refused.
        step: &'static str,
    },
    /// The kernel does not describe its types.
    #[error(
        "the congestion controls \"fixed-rate\" and \"find-rate\" need a kernel that describes its types in \
         /sys/kernel/btf/vmlinux (CONFIG_DEBUG_INFO_BTF, as Debian's has); boot one that does, \
         or write congestion = \"bbr\""
    )]
    NoTypes,
    /// The kernel does not take the program.
    #[error(
        "{step}: {message}; the congestion controls \"fixed-rate\" and \"find-rate\" need Linux 6.0 or newer with \
         CONFIG_BPF_JIT and CONFIG_BPF_SYSCALL; boot one, or write congestion = \"bbr\""
    )]
    Refused {
        /// The step that was refused.
        step: &'static str,
        /// The message of libbpf and the kernel, on one line.
        message: String,
    },
    /// Another control, which is not this program's, has its name.
    #[error(
        "a congestion control called {0} is there already, and does not go away; end the other \
         pepd in this network namespace, or run `pepd down` as root"
    )]
    NameTaken(Name),
}
