//! What stands in the way of split connections.

use std::fmt;

use super::tally::Passage;

/// The kind of thing that stands in the way. Its `name` is what metrics and the API call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Chains of `input` drop captured packets.
    Input,
    /// Chains of `output` drop what pepd's sockets send.
    Output,
    /// The kernel would not deliver captured packets to this host.
    Routing,
    /// The reverse-path check drops captured packets.
    SourceValidation,
    /// The listeners have no room.
    Backlog,
    /// The table of tracked connections is full.
    Conntrack,
    /// The host does not forward.
    Forwarding,
    /// Captured SYNs do not arrive, and nobody knows why.
    Unknown,
}

impl Cause {
    /// All causes, in the order in which they are listed.
    pub const ALL: [Cause; 8] = [
        Cause::Input,
        Cause::Output,
        Cause::Routing,
        Cause::SourceValidation,
        Cause::Backlog,
        Cause::Conntrack,
        Cause::Forwarding,
        Cause::Unknown,
    ];

    /// Gives its name, which stays as it is.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Input => "input",
            Cause::Output => "output",
            Cause::Routing => "routing",
            Cause::SourceValidation => "source_validation",
            Cause::Backlog => "backlog",
            Cause::Conntrack => "conntrack",
            Cause::Forwarding => "forwarding",
            Cause::Unknown => "unknown",
        }
    }

    /// Returns whether it would explain that packets are lost in a passage.
    pub fn explains(self, passage: Passage) -> bool {
        match passage {
            Passage::Input | Passage::Returns | Passage::Completion => matches!(
                self,
                Cause::Input | Cause::Routing | Cause::SourceValidation
            ),
            Passage::Answers => self == Cause::Output,
            Passage::Listener => self == Cause::Backlog,
            Passage::Dials => matches!(self, Cause::Output | Cause::Conntrack),
        }
    }

    /// Returns whether new connections fare better unsplit. What hinders routed ones as well is
    /// told, no more.
    pub const fn ends_with_routing(self) -> bool {
        !matches!(self, Cause::Conntrack | Cause::Forwarding)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing it is.
    pub cause: Cause,
    /// Whether it stops every split connection for sure, or perhaps: a chain that drops by default
    /// may let through what matters by a rule that depends on the packet.
    pub certain: bool,
    /// A sentence on what is the matter.
    pub text: String,
    /// What to do about it: a command where there is one.
    pub cure: String,
}
