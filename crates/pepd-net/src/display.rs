//! The plan as text: what `pepd show` prints.

use std::fmt;

use crate::iptables::rules as iptables;
use crate::nft::carried::Earlier;
use crate::nft::ruleset;
use crate::plan::Plan;

impl Plan {
    /// Writes the nft ruleset: one batch, which the kernel takes whole or not at all.
    ///
    /// It deletes an earlier `inet pepd` table and makes a new one, with the gate closed.
    pub fn nft(&self) -> String {
        ruleset::write(self, Earlier::Discarded).text
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.nft())?;
        for line in iptables::rules(self) {
            writeln!(f, "{line}")?;
        }
        for item in self.items() {
            writeln!(f, "{item}")?;
        }
        for tunnel in &self.tunnels {
            write!(f, "{tunnel}")?;
        }
        for item in &self.next_hop {
            writeln!(f, "{item}")?;
        }
        Ok(())
    }
}
