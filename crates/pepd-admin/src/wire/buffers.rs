//! The buffers of legs with `buffer = "auto"`.

use pepd_telemetry::{BufferFigures, FlowSnapshot, LegSnapshot, SizedBy};
use serde::{Deserialize, Serialize};

/// The buffers of all live connections' legs of one name, in bytes as the kernel counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AutoBuffers {
    /// The `[leg.NAME]`.
    pub leg: String,
    /// What is sent and not acknowledged, and what waits to be sent.
    pub send: BufferSum,
    /// What has come and was not read.
    pub receive: BufferSum,
}

/// One of both buffers, of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BufferSum {
    /// What they hold together.
    pub held: u64,
    /// The largest that there is.
    pub largest: u64,
    /// Those that the kernel sizes.
    pub kernel: u64,
    /// Those that are larger than its maximum, because the path carries so much.
    pub path: u64,
    /// Those that have no more than their part, because memory is short.
    pub memory: u64,
}

impl AutoBuffers {
    /// Sums up the legs of this name.
    pub fn sum(leg: &str, flows: &[FlowSnapshot]) -> Self {
        let mut sum = Self {
            leg: leg.to_owned(),
            send: BufferSum::default(),
            receive: BufferSum::default(),
        };
        let legs = flows
            .iter()
            .flat_map(|flow| [&flow.client_leg, &flow.upstream_leg]);
        let named = |of: &&LegSnapshot| of.profile == leg;
        for buffers in legs.filter(named).filter_map(|leg| leg.buffers) {
            sum.send.add(&buffers.send);
            sum.receive.add(&buffers.receive);
        }
        sum
    }
}

impl BufferSum {
    /// Returns how many there are for this reason.
    pub fn sized_by(&self, why: SizedBy) -> u64 {
        match why {
            SizedBy::Kernel => self.kernel,
            SizedBy::Path => self.path,
            SizedBy::Memory => self.memory,
            SizedBy::File => 0,
        }
    }

    fn add(&mut self, buffer: &BufferFigures) {
        self.held += buffer.held;
        self.largest = self.largest.max(buffer.size);
        match buffer.why {
            SizedBy::Kernel => self.kernel += 1,
            SizedBy::Path => self.path += 1,
            SizedBy::Memory => self.memory += 1,
            // From before a reload.
            SizedBy::File => {}
        }
    }
}
