//! Messages, written and read; nothing in the bytes from the kernel is trusted.

use std::io;

use super::attributes::{self, Attributes};
use super::header::{self, Family, Header, MessageType, NETLINK_BYTES, NFNETLINK_BYTES};

/// Makes a message of one request.
pub fn message(header: Header, body: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, header, body);
    bytes
}

/// Appends a message to those that go with it.
pub(super) fn append(bytes: &mut Vec<u8>, header: Header, body: impl FnOnce(&mut Attributes<'_>)) {
    let start = bytes.len();
    header.write(bytes);
    body(&mut Attributes::appended(bytes));
    header::finish(bytes, start);
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message's type.
    pub kind: MessageType,
    /// The number of the request that it is about; 0 if it is about none.
    pub sequence: u32,
    /// Whether what is dumped has changed meanwhile, so that parts do not fit each other
    /// (NLM_F_DUMP_INTR).
    pub is_inconsistent: bool,
    /// The bytes that follow the netlink header.
    body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the protocols that the message is about; none where it is cut off before them.
    pub fn family(&self) -> Option<Family> {
        self.body.first().copied().map(Family)
    }

    /// Returns the attributes; none where the message is cut off before them.
    pub fn attributes(&self) -> Option<impl Iterator<Item = (u16, &'a [u8])> + use<'a>> {
        self.body.get(NFNETLINK_BYTES..).map(attributes::read)
    }
}

/// Returns the messages in a datagram from the kernel. Anything that is not a message, or is cut
/// short, ends them.
pub fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    const NLM_F_DUMP_INTR: u16 = 0x10;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = MessageType::from_bytes(*rest.get(4..)?.first_chunk()?);
        let flags = u16::from_ne_bytes(*rest.get(6..)?.first_chunk()?);
        let sequence = u32::from_ne_bytes(*rest.get(8..)?.first_chunk()?);
        let body = rest.get(NETLINK_BYTES..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind,
            sequence,
            is_inconsistent: flags & NLM_F_DUMP_INTR != 0,
            body,
        })
    })
}

/// The kernel's reply to one request (`struct nlmsgerr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done {
        /// The request's number.
        sequence: u32,
    },
    /// It was refused, and with it the batch that it was in.
    Refused {
        /// The request's number.
        sequence: u32,
        /// The reason, as errno(3).
        errno: i32,
    },
}

/// Returns the replies in a datagram from the kernel; anything else is passed over.
pub fn replies(datagram: &[u8]) -> impl Iterator<Item = Reply> + '_ {
    messages(datagram)
        .filter(|message| message.kind == MessageType::ERROR)
        .filter_map(|Message { sequence, body, .. }| {
            Some(match i32::from_ne_bytes(*body.first_chunk()?) {
                0 => Reply::Done { sequence },
                code => Reply::Refused {
                    sequence,
                    errno: code.saturating_neg(),
                },
            })
        })
}

/// Reads the kernel's reply to a single request.
pub(super) fn acknowledged(datagram: &[u8]) -> io::Result<()> {
    match replies(datagram).next() {
        Some(Reply::Done { .. }) => Ok(()),
        Some(Reply::Refused { errno, .. }) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(datagram: &[u8]) -> Vec<Reply> {
        super::replies(datagram).collect()
    }

    #[test]
    fn replies_are_read_one_after_the_other() {
        let datagram = [error(3, 0), error(4, -2), error(5, i32::MIN)].concat();
        assert_eq!(
            replies(&datagram),
            [
                Reply::Done { sequence: 3 },
                Reply::Refused {
                    sequence: 4,
                    errno: 2
                },
                Reply::Refused {
                    sequence: 5,
                    errno: i32::MAX
                },
            ]
        );
    }

    #[test]
    fn a_reply_cut_anywhere_does_no_harm() {
        let datagram = [error(3, 0), error(4, -2)].concat();
        for length in 0..datagram.len() {
            assert!(replies(&datagram[..length]).len() < 2, "{length}");
        }
        // Lengths that lead nowhere must not be followed for ever.
        for length in [0u32, 1, 15, 16, u32::MAX] {
            let mut broken = error(3, 0);
            broken[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(replies(&broken), []);
        }
    }

    #[test]
    fn a_single_request_is_done_or_has_an_errno() {
        assert!(acknowledged(&error(0, 0)).is_ok());
        let refused = acknowledged(&error(0, -libc::EBUSY)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        assert!(acknowledged(&[]).is_err());
    }

    fn error(sequence: u32, code: i32) -> Vec<u8> {
        const NLMSG_ERROR: u16 = 2;
        let nlmsgerr = [&code.to_ne_bytes()[..], &[0; 16]].concat();
        let length = u32::try_from(16 + nlmsgerr.len()).unwrap();
        [
            &length.to_ne_bytes()[..],
            &NLMSG_ERROR.to_ne_bytes(),
            &0u16.to_ne_bytes(),
            &sequence.to_ne_bytes(),
            &[0; 4],
            &nlmsgerr,
        ]
        .concat()
    }
}
