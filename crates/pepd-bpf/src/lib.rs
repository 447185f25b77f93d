//! The congestion controls `fixed-rate` and `find-rate`: a leg that keeps to its rate, whatever is lost,
//! which is given or found.
//!
//! Their work is done by a BPF program in the kernel (`src/bpf/leg_rate.bpf.c`, a `struct_ops`
//! of the kernel's `struct tcp_congestion_ops`). This crate loads one for each leg that asks for
//! it, [registers](register) it as a congestion control under a [name](Name) of its own,
//! [removes](remove_left) what a killed daemon may have left, and carries [orders](Order) and
//! [counts](Counts) between the program and whoever finds the rate ([`Steering`]).
//!
//! A third one is nobody's for long: after an outage a connection is given it for a moment, which opens its
//! window (`src/bpf/resume.bpf.c`, [`Use::Resume`]).
//!
//! The programs are in the repository compiled (`cargo xtask bpf` does that), and read (`object.rs`), fitted to
//! the running kernel's types (`fit.rs`, `ops.rs`) and loaded (`load.rs`) here: so building pepd takes no C compiler, and
//! running it no library.

#![forbid(unsafe_code)]

mod fit;
mod instruction;
mod kernel;
mod kinds;
mod load;
mod name;
mod object;
mod ops;
mod order;
mod steering;
mod types;

pub use kernel::{Control, probe, register, remove_left, resume_program};
pub use name::{Name, NetworkNamespace, Use};
pub use order::{CLASSES, Counted, Counts, EPOCHS, Order};
pub use steering::Steering;

/// The reasons why a control cannot be registered or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
        /// What was refused and why, in the kernel's words, on one line.
        message: String,
    },
    /// Another control, which is not this program's, has its name.
    #[error(
        "a congestion control called {0} is there already, and does not go away; end the other \
         pepd in this network namespace, or run `pepd down` as root"
    )]
    NameTaken(Name),
}
