//! What becomes of a client's SYN, and how the capture is told.

use pepd_packet::{MarkValue, PacketMark, VerdictMarks};
use pepd_telemetry::UnsplitReason;

/// The decision on a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SynVerdict {
    /// It goes to the listener.
    Split,
    /// It goes to the upstream leg that is open towards its sender, or to the next hop; not
    /// counted.
    Pass,
    /// Routed as if pepd were not there.
    Bypass(UnsplitReason),
    /// Answered with a RST, as the destination has.
    Refused,
    /// The same, because the link to the destination is gone.
    RefusedLinkGone,
    /// Answered with an ICMP error.
    Unreachable(Unreachable),
    /// Not answered: nobody has answered it.
    Silence,
    /// Not answered, and not counted: another packet speaks for its connection, or the client's
    /// next SYN goes another way.
    Superseded,
}

/// The ICMP error that a client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The network, or no route (RFC 792 code 0, RFC 4443 code 0).
    Network,
    /// The host or its address (codes 1 and 3).
    Host,
    /// The port (codes 3 and 4).
    Port,
    /// Administratively prohibited (RFC 1812 code 13, RFC 4443 code 1).
    Prohibited,
}

impl SynVerdict {
    /// Returns whether the packet goes no further.
    pub(super) fn is_drop(self) -> bool {
        matches!(self, Self::Silence | Self::Superseded)
    }

    /// Returns the whole mark of a packet that had `mark` and goes on with this verdict.
    pub(super) fn mark(self, mark: PacketMark, marks: VerdictMarks) -> PacketMark {
        let value = match self {
            Self::Split => marks.split,
            Self::Refused | Self::RefusedLinkGone => marks.refused,
            Self::Unreachable(Unreachable::Network) => marks.network,
            Self::Unreachable(Unreachable::Host) => marks.host,
            Self::Unreachable(Unreachable::Port) => marks.port,
            Self::Unreachable(Unreachable::Prohibited) => marks.prohibited,
            // If it is for a socket, that gets it before the mark is looked at.
            Self::Pass | Self::Bypass(_) | Self::Silence | Self::Superseded => MarkValue::NONE,
        };
        mark.with(value, marks.mask)
    }
}

#[cfg(test)]
mod tests {
    use pepd_packet::MarkMask;

    use super::*;

    #[test]
    fn the_operators_bits_of_a_mark_survive() {
        let marks = VerdictMarks {
            mask: MarkMask(0x7000_0000),
            split: MarkValue(0x1000_0000),
            refused: MarkValue(0x2000_0000),
            network: MarkValue(0x3000_0000),
            host: MarkValue(0x4000_0000),
            port: MarkValue(0x5000_0000),
            prohibited: MarkValue(0x6000_0000),
        };
        let mark = |before, verdict: SynVerdict| verdict.mark(PacketMark(before), marks).0;
        assert_eq!(mark(0xf000_00aa, SynVerdict::Split), 0x9000_00aa);
        assert_eq!(mark(0x7000_00aa, SynVerdict::Silence), 0xaa);
    }
}
