//! The long and lossy path: two emulated links with the helper box between them.

use std::time::Duration;

use anyhow::Result;
use pepd_testbed::link::{Loss, Rate, Shape};
use pepd_testbed::{Netns, World};

/// The rate of both links.
const MBIT: u64 = 100;
/// One way over the long, clean link.
const FAR: Duration = Duration::from_millis(200);
/// One way over the short, lossy link.
const RADIO: Duration = Duration::from_millis(10);
/// The share of packets that the lossy link loses, in either direction.
const LOSS: f64 = 0.05;
/// The share of a packet's 1500 bytes that TCP carries (RFC 7323 timestamps).
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// Windows that fill a path of 100 Mbit/s and 420 ms (5 MB) with room to spare.
const HOST_BUFFER: u32 = 32 << 20;

/// What the demo says about the path.
pub const PICTURE: &str = "\
client 10.1.0.2 ════════════════ hb ════════════════════════ server 10.2.0.2
          a radio link                 a satellite's link
          100 Mbit/s, 10 ms each way,  100 Mbit/s, 200 ms each way,
          5 % of packets lost          nothing lost";

/// The helper box's configuration for it.
pub const CONFIG: &str = r#"[node]
name = "hb"

[capture]
handshake = "early"

[[campus]]                    # the users, behind the radio link
name = "users"
prefixes = ["10.1.0.0/16"]
leg = "radio"

[[campus]]                    # the servers, behind the satellite
name = "servers"
prefixes = ["10.2.0.0/16"]
leg = "satellite"

[leg.radio]
congestion = "bbr"            # does not take every loss for congestion
buffer = "16MiB"

[leg.satellite]
congestion = "cubic"
buffer = "32MiB"              # more than rate × round trip: 5 MB
"#;

/// The namespaces and the links.
#[derive(Debug)]
pub struct LongPath(World);

impl LongPath {
    /// Builds it. Both hosts use cubic, as nearly all do.
    ///
    /// # Errors
    /// Without root or TUN.
    pub fn build() -> Result<Self> {
        let far = Shape::new(FAR, Rate::mbit(MBIT));
        let radio = Shape {
            loss: Loss::independent(LOSS),
            ..Shape::new(RADIO, Rate::mbit(MBIT))
        };
        let world = World::emulated(radio, far)?;
        world.hosts_use("cubic")?;
        for host in [world.client(), world.server()] {
            for key in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
                host.sysctl(key, &format!("4096 131072 {HOST_BUFFER}"))?;
            }
        }
        Ok(Self(world))
    }

    /// Returns the host that downloads.
    pub fn client(&self) -> &Netns {
        self.0.client()
    }

    /// Returns the router between the links.
    pub fn hb(&self) -> &Netns {
        self.0.hb()
    }

    /// Returns the host that has the file.
    pub fn server(&self) -> &Netns {
        self.0.server()
    }

    /// Returns what TCP can carry at most over the lossy link, in bits per second: what is lost has
    /// used its share of the rate, and of what arrives the headers are not payload.
    pub fn physical_limit() -> f64 {
        MBIT as f64 * 1e6 * (1.0 - LOSS) * PAYLOAD_SHARE
    }

    /// Begins a count: a link that cannot keep up is told of at the end of it.
    ///
    /// # Errors
    /// When a link has ended.
    pub fn restart(&self) -> Result<()> {
        for link in self.0.emulated_links() {
            link.restart()?;
        }
        Ok(())
    }

    /// Returns whether the machine was too busy to emulate the path since the last restart.
    ///
    /// # Errors
    /// When a link has ended.
    pub fn fell_behind(&self) -> Result<bool> {
        let [radio, far] = self.0.emulated_links();
        Ok(radio.report()?.fell_behind() || far.report()?.fell_behind())
    }
}
