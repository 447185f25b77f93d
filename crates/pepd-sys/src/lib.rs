//! The system calls pepd needs and no crate offers safely.
//!
//! This is the only crate with `unsafe`. It has one rule: a function takes borrowed
//! descriptors and plain values, makes one call, and gives its result with errno kept.
//! What the calls are for is decided elsewhere.
//!
//! - [`sockopt`]: socket options that socket2 does not have, each a getter and a setter;
//! - [`stream`]: reading, peeking, discarding and urgent data on a connected socket;
//! - [`pipe`]: pipes and splice(2);
//! - [`tcp_info`]: what the kernel knows of a connection;
//! - [`repair`]: the rest of it, and putting all of it into another socket;
//! - [`nfnetlink`]: the messages of netfilter;
//! - [`nfqueue`]: packets that wait for a verdict;
//! - [`nflog`]: headers of packets that wait for nothing;
//! - [`seccomp`]: filters of system calls;
//! - [`bpf`]: BPF programs and their maps;
//! - [`clock`]: whether the system clock is in step;
//! - [`reactor`]: registering descriptors with tokio;
//! - [`process`]: a process that shares this one's table of descriptors, and signals;
//! - [`descriptors`]: what another process has left in that table;
//! - [`shared`]: memory that outlives the process that writes it.

pub mod bpf;
pub mod clock;
pub mod descriptors;
pub mod nflog;
pub mod nfnetlink;
pub mod nfqueue;
pub mod pipe;
pub mod process;
pub mod reactor;
pub mod repair;
pub mod seccomp;
pub mod shared;
pub mod sockopt;
pub mod stream;
mod syscall;
pub mod tcp_info;

pub use syscall::retry_on_intr;
