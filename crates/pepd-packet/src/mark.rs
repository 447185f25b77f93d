//! The packet mark, and what its values say.
//!
//! A packet's mark (`skb->mark`) has 32 bits, of which the operator gives pepd some: the
//! [`MarkMask`]. What those bits are set to is a [`MarkValue`]; the mark as a whole, with the
//! operator's bits in it, is a [`PacketMark`].

use std::fmt;
use std::ops::Not;

/// A mark and the bits of it that count, as `ip rule … fwmark VALUE/MASK`.
///
/// Bits outside the mask are the operator's and are never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The value of the masked bits on a captured packet.
    pub value: MarkValue,
    /// The bits that belong to pepd.
    pub mask: MarkMask,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

impl Mark {
    /// Returns whether the value is other than 0 and within the mask, as `ip rule` needs it.
    pub fn fits(self) -> bool {
        self.value != MarkValue::NONE && self.value.0 & !self.mask.0 == 0
    }

    /// Returns the marks that the relay's sockets should have (SO_MARK): their packets are known by
    /// these without looking at the addresses, and connection tracking is to see the upstream leg
    /// only. None if the mask has one bit: then packets are found more slowly, and address
    /// translation on this host does not apply to split connections.
    ///
    /// On packets that come in the same values mean [`VerdictMarks`]; a socket's mark is only
    /// ever on packets that go out, and is no reason to deliver them here.
    pub fn sockets(self) -> Option<SocketMarks> {
        let MarkMask(mask) = self.mask;
        let lowest = mask & mask.wrapping_neg();
        let mut free = [lowest, mask & !lowest, mask]
            .into_iter()
            .map(MarkValue)
            .filter(|mark| *mark != MarkValue::NONE && *mark != self.value);
        let (client, upstream) = (free.next()?, free.next()?);
        let unclaimed = self
            .others()
            .find(|mark| ![client, upstream].contains(mark));
        (client != upstream).then_some(SocketMarks {
            client,
            upstream,
            unclaimed,
        })
    }

    /// Returns the values within the mask other than 0 and the mark's own, in ascending order: a
    /// carry runs through the gaps of the mask.
    pub fn others(self) -> impl Iterator<Item = MarkValue> {
        let (MarkMask(mask), mut next) = (self.mask, 0u32);
        std::iter::repeat_with(move || {
            next = next.wrapping_sub(mask) & mask;
            MarkValue(next)
        })
        .take((1usize << mask.count_ones().min(4)) - 1)
        .filter(move |candidate| *candidate != self.value)
    }

    /// Returns the marks that tell what becomes of a held SYN. None if the mask has fewer than
    /// three bits: seven values are needed.
    ///
    /// A SYN to be held carries `value` itself: as that means "deliver here" only after the
    /// SYN's verdict is known, it is free until then.
    pub fn verdicts(self) -> Option<VerdictMarks> {
        let mut free = self.others();
        Some(VerdictMarks {
            mask: self.mask,
            split: free.next()?,
            refused: free.next()?,
            network: free.next()?,
            host: free.next()?,
            port: free.next()?,
            prohibited: free.next()?,
        })
    }
}

/// The marks of the relay's sockets, within pepd's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMarks {
    /// The mark of listeners, and so of the client legs that they accept.
    pub client: MarkValue,
    /// The mark of upstream legs.
    pub upstream: MarkValue,
    /// The mark of upstream legs whose client has not proved its address yet: what ends the
    /// destination's handshake is held back. None if the mask has fewer than three bits, with which
    /// no SYN can be held either.
    pub unclaimed: Option<MarkValue>,
}

/// The marks by which the capture is told what becomes of a held SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictMarks {
    /// The bits that count. With none of them set the SYN is routed.
    pub mask: MarkMask,
    /// It goes to the listener.
    pub split: MarkValue,
    /// It is answered with a RST.
    pub refused: MarkValue,
    /// It is answered with the ICMP error for a network or no route.
    pub network: MarkValue,
    /// It is answered with the ICMP error for a host or its address.
    pub host: MarkValue,
    /// It is answered with the ICMP error for a port.
    pub port: MarkValue,
    /// It is answered with the ICMP error for an administrative prohibition.
    pub prohibited: MarkValue,
}

/// A value of pepd's bits of the mark; the operator's bits are 0 in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkValue(pub u32);

impl MarkValue {
    /// The mark of which no bit is set.
    pub const NONE: Self = Self(0);
}

impl fmt::LowerHex for MarkValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The bits of the mark that belong to pepd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkMask(pub u32);

impl Not for MarkMask {
    type Output = Self;

    /// Returns the bits that are the operator's.
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::LowerHex for MarkMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The whole mark of a packet: pepd's bits and the operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PacketMark(pub u32);

impl PacketMark {
    /// Returns the same mark with pepd's bits set to `value`, and the operator's as they were.
    #[must_use]
    pub fn with(self, value: MarkValue, mask: MarkMask) -> Self {
        Self(self.0 & !mask.0 | value.0 & mask.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(value: u32, mask: u32) -> Mark {
        Mark {
            value: MarkValue(value),
            mask: MarkMask(mask),
        }
    }

    #[test]
    fn sockets_have_marks_of_their_own() {
        let sockets = |value, mask| {
            let marks = mark(value, mask).sockets()?;
            let unclaimed = marks.unclaimed.map(|mark| mark.0);
            Some((marks.client.0, marks.upstream.0, unclaimed))
        };
        assert_eq!(
            sockets(0x7000_0000, 0x7000_0000),
            Some((0x1000_0000, 0x6000_0000, Some(0x2000_0000)))
        );
        assert_eq!(
            sockets(0x1000_0000, 0x7000_0000),
            Some((0x6000_0000, 0x7000_0000, Some(0x2000_0000)))
        );
        assert_eq!(sockets(2, 0xff), Some((1, 0xfe, Some(3))));
        assert_eq!(sockets(1, 3), Some((2, 3, None)));
        assert_eq!(sockets(3, 3), Some((1, 2, None)));
        assert_eq!(sockets(8, 8), None);
    }

    #[test]
    fn seven_values_fit_into_any_three_bits() {
        for (value, mask) in [(0x7000_0000, 0x7000_0000), (0x10, 0x0101_0010), (3, 0xffff)] {
            let marks = mark(value, mask).verdicts().unwrap();
            let VerdictMarks {
                mask: bits,
                split,
                refused,
                network,
                host,
                port,
                prohibited,
            } = marks;
            assert_eq!(bits, MarkMask(mask));
            let mut all = [split, refused, network, host, port, prohibited]
                .map(|mark| mark.0)
                .to_vec();
            all.push(value);
            assert!(all.iter().all(|v| *v != 0 && v & !mask == 0), "{marks:x?}");
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 7, "{marks:x?}");
        }
    }

    #[test]
    fn two_bits_are_too_few() {
        for mask in [0x1, 0x3000_0000] {
            assert_eq!(mark(mask, mask).verdicts(), None);
        }
    }

    #[test]
    fn the_order_in_which_values_are_given_out_stays() {
        let marks = mark(0x7000_0000, 0x7000_0000).verdicts().unwrap();
        assert_eq!(
            [
                marks.split,
                marks.refused,
                marks.network,
                marks.host,
                marks.port,
                marks.prohibited
            ]
            .map(|mark| mark.0 >> 28),
            [1, 2, 3, 4, 5, 6]
        );
    }

    #[test]
    fn the_operators_bits_of_a_mark_survive() {
        let (packet, mask) = (PacketMark(0xf000_00aa), MarkMask(0x7000_0000));
        assert_eq!(
            packet.with(MarkValue(0x1000_0000), mask),
            PacketMark(0x9000_00aa)
        );
        assert_eq!(packet.with(MarkValue::NONE, mask), PacketMark(0x8000_00aa));
    }

    #[test]
    fn a_mark_that_fits_is_within_its_mask() {
        assert!(mark(0x10, 0xff).fits());
        assert!(!mark(0x100, 0xff).fits());
        assert!(!mark(0, 0xff).fits());
        assert_eq!(mark(0x10, 0xff).to_string(), "0x10/0xff");
    }
}
