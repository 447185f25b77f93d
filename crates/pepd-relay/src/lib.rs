//! pepd's data path: listeners, legs, the relay, limits and drain.
//!
//! The relay is told what to do in types of its own ([`Settings`]), and knows neither the
//! configuration file nor the kernel's tables. What it needs of the capture is that SYNs from
//! the campuses of a leg are sent to that leg's [`ListenerAddress`], and that return packets of
//! transparent sockets are delivered on this host. What it tells the capture, through
//! [`Admission`], is when to send no more.
//!
//! The order of a start is [`probe`], [`Prepared::new`] (the listeners are open), then the
//! capture, then [`Relay::start`]; of a reload [`Relay::prepare`], the capture,
//! [`Relay::reload`].

#![forbid(unsafe_code)]

mod accept;
mod asymmetric_routes;
mod call;
mod chosen;
mod connection;
mod essential;
mod fast_open;
mod first_window;
mod gate_history;
mod handle;
mod handshake;
mod left_legs;
mod limits;
mod listener;
mod memory;
mod moving;
mod outage;
mod pipe_pool;
mod probe;
mod registered;
mod remains;
pub mod runtime_thread;
mod sample;
mod settings;
mod share;
mod shared;
mod shortage;
mod slots;
mod sockopts;
mod spare;
mod sync;
mod worker;

pub use asymmetric_routes::AsymmetricRoute;
pub use call::Call;
pub use chosen::ChosenControl;
pub use essential::Essential;
pub use first_window::LearnedWindow;
pub use gate_history::GateWatch;
pub use handle::{Observer, Prepared, Relay, listener_addresses};
pub use limits::{Admission, Pressure};
pub use listener::ListenError;
pub use moving::{Frozen, Mover, NotRestored, Silent, Stays};
pub use outage::Injector;
pub use pipe_pool::PIPE_BYTES;
pub use probe::{ProbeError, has_control, probe, without_own_controls};
pub use remains::Remains;
pub use sample::sample;
pub use settings::{
    Buffer, Campus, Dscp, EndToEnd, Keepalive, KernelBuffers, Leg, Limits, ListenerAddress,
    Settings, WhileGone,
};
pub use share::{Share, WeightRule};
pub use slots::Slots;
pub use slots::found::{LostBecause, LostConnection, UnclearBytes};
pub use sockopts::{Difference, SocketError, SocketOption};
pub use worker::{LISTENER_SETS, LinkControl};
