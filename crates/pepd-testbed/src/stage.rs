//! A scenario's setting: a world, with the daemon in it or without.

use anyhow::{Context, Result, ensure};

use crate::pepd::Pepd;
use crate::sockets::accepted;
use crate::world::World;

/// What carries the packets across the helper box. A scenario about the end hosts' view must
/// hold over both; that it holds over plain routing shows that the scenario itself is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The kernel alone.
    Routing,
    /// The daemon.
    Pepd,
    /// The daemon, which answers a client before its destination (`handshake = "early"`).
    Early,
}

/// A world and, possibly, the daemon in it. Dropped before [`Stage::finish`] it prints the daemon's
/// log: the test has failed.
#[derive(Debug)]
pub struct Stage {
    /// The namespaces.
    pub world: World,
    /// The daemon.
    pub pepd: Option<Pepd>,
    finished: bool,
}

impl Stage {
    /// Makes the standard world, with the daemon from the file `binary` and the standard
    /// configuration if it is to be there.
    ///
    /// # Errors
    /// Without root, or when the daemon does not start.
    pub fn open(via: Via, binary: &str) -> Result<Self> {
        let config = match via {
            Via::Routing | Via::Pepd => World::config(),
            Via::Early => World::early_config(),
        };
        Self::in_world(World::standard()?, via, binary, &config)
    }

    /// Makes the standard world and the daemon with a configuration of its own.
    ///
    /// # Errors
    /// Without root, or when the daemon does not start.
    pub fn with_config(binary: &str, config: &str) -> Result<Self> {
        Self::in_world(World::standard()?, Via::Pepd, binary, config)
    }

    /// Starts the daemon in any world.
    ///
    /// # Errors
    /// When the daemon does not start.
    pub fn in_world(world: World, via: Via, binary: &str, config: &str) -> Result<Self> {
        let pepd = match via {
            Via::Routing => None,
            Via::Pepd | Via::Early => Some(Pepd::start(binary, world.hb(), config)?),
        };
        Ok(Self {
            world,
            pepd,
            finished: false,
        })
    }

    /// Returns the daemon.
    ///
    /// # Errors
    /// When this stage has none, or had it taken.
    pub fn pepd(&mut self) -> Result<&mut Pepd> {
        self.pepd.as_mut().context("no daemon on this stage")
    }

    /// Ends a scenario: the daemon must still run and have split something, or, without it,
    /// nothing may have been split.
    ///
    /// # Errors
    /// When that is not so.
    pub fn finish(mut self) -> Result<()> {
        let accepted = accepted(self.world.hb())?;
        match &mut self.pepd {
            Some(pepd) => {
                ensure!(pepd.runs(), "the daemon has ended");
                ensure!(
                    !pepd.log().contains("panicked"),
                    "a panic in the daemon's log"
                );
                ensure!(
                    accepted > 0,
                    "the daemon has accepted no connection: nothing was split"
                );
            }
            None => ensure!(
                accepted == 0,
                "{accepted} connections accepted without a daemon"
            ),
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(pepd) = self.pepd.as_ref().filter(|_| !self.finished) {
            // Captured by libtest and shown with the failure.
            println!("---- the daemon's log ----\n{}----", pepd.log());
        }
    }
}
