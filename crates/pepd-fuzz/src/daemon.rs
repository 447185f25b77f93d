//! As much of the daemon as its `wiring.rs` takes, without the kernel.

/// A leg's congestion control.
pub mod controls {
    use pepd_config::{Congestion, Leg};

    /// The controls of legs with a fixed rate: none is registered.
    pub struct Controls;

    impl Controls {
        /// Returns the name by which the kernel knows a leg's control.
        pub fn kernel_name(&self, leg: &Leg) -> Option<String> {
            match leg.congestion.as_ref()? {
                Congestion::Kernel(name) => Some(name.clone()),
                Congestion::FixedRate | Congestion::FindRate | Congestion::Auto => None,
            }
        }

        /// Returns what is chosen for a leg: nobody does.
        pub fn chosen(&self, _leg: &Leg) -> Option<pepd_relay::ChosenControl> {
            None
        }
    }
}

/// Threads.
pub mod resources {
    use std::num::NonZeroUsize;

    use pepd_config::{Config, Size};

    /// Returns what TCP may use.
    pub fn tcp_memory() -> Size {
        Size(1 << 30)
    }

    /// Returns what the kernel makes of buffers.
    pub fn kernel_buffers() -> pepd_relay::KernelBuffers {
        pepd_relay::KernelBuffers {
            send: 4 << 20,
            receive: 6 << 20,
        }
    }

    /// Returns the number of workers.
    pub fn workers(config: &Config) -> NonZeroUsize {
        config.node.workers.unwrap_or(NonZeroUsize::MIN)
    }
}
