//! What stands before a message's attributes.

use std::ops::BitOr;

/// The bytes of `struct nlmsghdr`.
pub(super) const NETLINK_BYTES: usize = 16;

/// The bytes of `struct nfgenmsg`: family, version, resource id.
pub(super) const NFNETLINK_BYTES: usize = 4;

/// The headers of a message: `struct nlmsghdr` and `struct nfgenmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the message.
    pub kind: MessageType,
    /// The flags: what the kernel is to do beside what the type says; the one for a request is
    /// always set.
    pub flags: Flags,
    /// The number that the kernel's reply repeats.
    pub sequence: u32,
    /// The protocols that the message is about.
    pub family: Family,
    /// A number that depends on the message's type, such as that of a queue.
    pub resource: u16,
}

impl Header {
    /// Appends the header of a message whose attributes follow; see [`finish`].
    pub(super) fn write(self, bytes: &mut Vec<u8>) {
        const NLM_F_REQUEST: u16 = 0x1;
        const NFNETLINK_V0: u8 = 0;
        bytes.extend([0; 4]);
        bytes.extend(self.kind.0.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | self.flags.0).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        // The port: 0, for the kernel to fill in.
        bytes.extend([0; 4]);
        bytes.extend([self.family.0, NFNETLINK_V0]);
        bytes.extend(self.resource.to_be_bytes());
    }
}

/// Enters the length of the message that begins at `start`.
pub(super) fn finish(bytes: &mut [u8], start: usize) {
    // A message here is a hundred bytes long.
    let length = u32::try_from(bytes.len() - start).unwrap_or(u32::MAX);
    if let Some(field) = bytes.get_mut(start..start + 4) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
}

/// A part of netfilter that has messages of its own (NFNL_SUBSYS_…).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystem(pub u8);

impl Subsystem {
    /// Connection tracking.
    pub const CONNTRACK: Self = Self(1);
    /// NFQUEUE.
    pub const QUEUE: Self = Self(3);
    /// NFLOG.
    pub const LOG: Self = Self(4);
    /// nf_tables.
    pub const NFTABLES: Self = Self(10);
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(u16);

impl MessageType {
    /// The reply to a request (NLMSG_ERROR), which may be that all is well.
    pub const ERROR: Self = Self(2);
    /// A dump has ended (NLMSG_DONE).
    pub const DONE: Self = Self(3);
    /// A batch begins (NFNL_MSG_BATCH_BEGIN).
    pub(super) const BATCH_BEGIN: Self = Self(0x10);
    /// A batch ends (NFNL_MSG_BATCH_END).
    pub(super) const BATCH_END: Self = Self(0x11);

    /// Returns the type of a subsystem's message with this number.
    pub const fn of(subsystem: Subsystem, message: u8) -> Self {
        Self((subsystem.0 as u16) << 8 | message as u16)
    }

    /// Returns the number of this message among those of `subsystem`; none if it is another's.
    pub const fn within(self, subsystem: Subsystem) -> Option<u8> {
        let [of, message] = self.0.to_be_bytes();
        if of == subsystem.0 {
            Some(message)
        } else {
            None
        }
    }

    pub(super) fn from_bytes(bytes: [u8; 2]) -> Self {
        Self(u16::from_ne_bytes(bytes))
    }
}

/// Flags that tell the kernel what to do beside what a message's type says (NLM_F_…).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The flag to reply when it is done, too.
    pub const ACK: Self = Self(0x4);
    /// The flag to reply with all that there is, in any number of messages (NLM_F_DUMP).
    pub const DUMP: Self = Self(0x300);
    /// The flag to make what is not there.
    pub const CREATE: Self = Self(0x400);
    /// The flag to leave what is there as it is, and to refuse (NLM_F_EXCL).
    pub const EXCLUSIVE: Self = Self(0x200);
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The protocols that a message is about (NFPROTO_…).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(pub(super) u8);

impl Family {
    /// Not said.
    pub const UNSPECIFIED: Self = Self(0);
    /// IPv4 and IPv6.
    pub const INET: Self = Self(1);
    /// IPv4.
    pub const IPV4: Self = Self(2);
    /// IPv6.
    pub const IPV6: Self = Self(10);
}
