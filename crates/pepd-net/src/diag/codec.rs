//! The messages of sock_diag(7) that list TCP sockets and end them (linux/inet_diag.h).

use crate::prefix::Family;
use crate::request::Mark;

/// `NLMSG_ERROR` and `NLMSG_DONE` (netlink(7)).
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, and `NLM_F_ROOT | NLM_F_MATCH`.
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;

/// `INET_DIAG_REQ_BYTECODE`, the attribute with what a socket is to be like.
const REQUEST_BYTECODE: u16 = 1;
/// `INET_DIAG_BC_MARK_COND`, its operation which compares marks.
const MARK_CONDITION: u8 = 10;

/// The sockets that are asked for, by their states (net/tcp_states.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum States {
    /// Of sockets that nobody has open any more: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK and
    /// CLOSING.
    Closing,
    /// Of handshakes that a listener has answered and nobody has finished: NEW_SYN_RECV.
    HalfOpen,
}

impl States {
    const fn bits(self) -> u32 {
        match self {
            Self::Closing => 1 << 4 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 11,
            Self::HalfOpen => 1 << 12,
        }
    }
}

const HEADER_BYTES: usize = 16;
/// `struct inet_diag_sockid`: ports, addresses, interface and cookie.
const ID_BYTES: usize = 48;
/// `struct inet_diag_msg`: four bytes, the socket's id, and five figures.
const MESSAGE_BYTES: usize = 4 + ID_BYTES + 20;

/// A socket that the kernel has listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    family: u8,
    id: [u8; ID_BYTES],
}

/// A message from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// One of the list.
    Socket(Found),
    /// The end of a list, or the answer to a request, with its errno or 0.
    Done(i32),
}

/// Asks for the TCP sockets of a family in these states whose mark is this one.
pub(super) fn list(sequence: u32, states: States, family: Family, mark: Mark) -> Vec<u8> {
    let family = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    let mut body = request(
        u8::try_from(family).unwrap_or_default(),
        states.bits(),
        &[0; ID_BYTES],
    );
    // One operation of 12 bytes: past it if it holds, and beyond the end, which means no, if not.
    let (operation, beyond) = (12_u8, 16_u16);
    body.extend((4 + u16::from(operation)).to_ne_bytes());
    body.extend(REQUEST_BYTECODE.to_ne_bytes());
    body.extend([MARK_CONDITION, operation]);
    body.extend(beyond.to_ne_bytes());
    body.extend(mark.value.0.to_ne_bytes());
    body.extend(mark.mask.0.to_ne_bytes());
    message(BY_FAMILY, DUMP, sequence, &body)
}

/// Asks to end a socket that was listed, and no other: its cookie is compared.
pub(super) fn end(sequence: u32, socket: &Found) -> Vec<u8> {
    let body = request(socket.family, u32::MAX, &socket.id);
    message(DESTROY, ACK, sequence, &body)
}

/// Writes a `struct inet_diag_req_v2`.
fn request(family: u8, states: u32, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let tcp = u8::try_from(libc::IPPROTO_TCP).unwrap_or_default();
    let mut body = vec![family, tcp, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or_default();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    message
}

/// Reads what has come, but for answers to earlier requests. What is cut short ends it.
pub(super) fn replies(mut rest: &[u8], sequence: u32) -> impl Iterator<Item = Reply> {
    std::iter::from_fn(move || {
        loop {
            let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
            let message = rest.get(..length)?;
            let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
            let answers = u32::from_ne_bytes(*message.get(8..)?.first_chunk()?);
            let body = message.get(HEADER_BYTES..)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if answers == sequence
                && let Some(reply) = reply(kind, body)
            {
                return Some(reply);
            }
        }
    })
}

fn reply(kind: u16, body: &[u8]) -> Option<Reply> {
    match kind {
        ERROR | DONE => {
            // A negative errno; at the end of a list it may be missing.
            let errno = body
                .first_chunk()
                .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
            Some(Reply::Done(errno.wrapping_neg().max(0)))
        }
        BY_FAMILY => Some(Reply::Socket(Found {
            family: *body.get(..MESSAGE_BYTES)?.first()?,
            id: *body.get(4..)?.first_chunk()?,
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pepd_packet::{MarkMask, MarkValue};

    use super::*;

    /// A message as the kernel would write it.
    fn from_kernel(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        message(kind, 0, sequence, body)
    }

    #[test]
    fn a_socket_that_is_listed_is_the_one_that_is_ended() {
        let id = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let mut body = vec![2, 6, 0, 0];
        body.extend(id);
        body.extend([0; 20]);
        let mut bytes = from_kernel(BY_FAMILY, 7, &body);
        bytes.extend(from_kernel(DONE, 7, &0_i32.to_ne_bytes()));
        let found = Found { family: 2, id };
        let read: Vec<_> = replies(&bytes, 7).collect();
        assert_eq!(read, [Reply::Socket(found.clone()), Reply::Done(0)]);
        let asked = end(8, &found);
        assert_eq!(asked.len(), HEADER_BYTES + 8 + ID_BYTES);
        assert_eq!(asked[HEADER_BYTES], 2);
        assert_eq!(asked[HEADER_BYTES + 8..], id);
    }

    #[test]
    fn answers_to_others_and_what_is_cut_short_are_nothing() {
        let refused = from_kernel(ERROR, 3, &(-libc::EOPNOTSUPP).to_ne_bytes());
        let read = |bytes: &[u8], sequence| replies(bytes, sequence).collect::<Vec<_>>();
        assert_eq!(read(&refused, 3), [Reply::Done(libc::EOPNOTSUPP)]);
        assert_eq!(read(&refused, 4), []);
        for length in 0..refused.len() {
            assert_eq!(read(&refused[..length], 3), []);
        }
        let short = from_kernel(BY_FAMILY, 3, &[2; MESSAGE_BYTES - 1]);
        assert_eq!(read(&short, 3), []);
        // A length of nothing must not be read for ever.
        assert_eq!(read(&[0; 64], 0), []);
        let least = from_kernel(ERROR, 3, &i32::MIN.to_ne_bytes());
        assert_eq!(read(&least, 3), [Reply::Done(0)]);
    }

    #[test]
    fn the_filter_says_no_by_leaving_the_program() {
        let mark = Mark {
            value: MarkValue(0x1000_0000),
            mask: MarkMask(0x7000_0000),
        };
        let asked = list(1, States::HalfOpen, Family::V6, mark);
        assert_eq!(asked.len(), HEADER_BYTES + 8 + ID_BYTES + 4 + 12);
        let bytecode = &asked[HEADER_BYTES + 8 + ID_BYTES..];
        assert_eq!(bytecode[4..6], [MARK_CONDITION, 12]);
        assert_eq!(bytecode[6..8], 16_u16.to_ne_bytes());
    }
}
