//! Which word means what. A change of anything here is another
//! [`VERSION`](super::Slots::VERSION).

/// The number of slots that have ever been used.
pub(super) const USED: usize = 0;

/// The generation of the listeners in force.
pub(super) const GENERATION: usize = 1;
/// The key of the listeners' Fast Open cookies, two words.
pub(super) const KEY: usize = 2;
/// The number of workers; 0 before there are any.
pub(super) const WORKERS: usize = 4;

/// How many workers note what they have in hand, each in a cache line of its own after the first.
pub(super) const HANDS: usize = 255;
pub(super) const PER_HAND: usize = 8;

/// Where the slots begin, and the words of each: three cache lines.
pub(super) const FIRST_SLOT: usize = (1 + HANDS) * PER_HAND;
pub(super) const SLOT_WORDS: usize = 24;

/// What a slot is, in its lowest byte: [`FREE`] or [`RELAYED`]; and, from [`DEATHS_SHIFT`] on, how
/// many processes in a row have died with it in hand. Written last when it begins, and first when it ends.
pub(super) const STATE: usize = 0;
/// The descriptors of both sockets, the client's in the lower half; and their cookies (SO_COOKIE).
pub(super) const SOCKETS: usize = 1;
pub(super) const CLIENT_COOKIE: usize = 2;
pub(super) const UPSTREAM_COOKIE: usize = 3;
/// The first word of each direction, that from the client first.
pub(super) const WAYS: [usize; 2] = [4, 7];
/// What the legs have failed with, the client's in the lower half; 0 where they have not.
pub(super) const FAILURES: usize = 10;
/// When it was accepted, in nanoseconds (CLOCK_MONOTONIC).
pub(super) const ACCEPTED: usize = 11;
/// Its id in the table of flows.
pub(super) const ID: usize = 12;
/// The client's address and the server's, two words each; what else belongs to them.
pub(super) const CLIENT: usize = 13;
pub(super) const SERVER: usize = 15;
pub(super) const PORTS: usize = 17;
/// Of a connection that has come from another box: the bytes that its sockets were given there, and one, the
/// client's first, with the connection's place in its move from [`PLACE_SHIFT`] on; and that move, in two
/// words. Else 0.
pub(super) const BROUGHT: [usize; 2] = [18, 19];
pub(super) const MOVE: usize = 20;
pub(super) const PLACE_SHIFT: u32 = 48;

pub(super) const FREE: u64 = 0;
pub(super) const RELAYED: u64 = 1;
pub(super) const DEATHS_SHIFT: u32 = 8;

/// In the words of a direction, from its first: how it is; the descriptors of its pipe, the reading
/// end in the lower half, or 0; and the pipe's inode.
pub(super) const WAY_STATE: usize = 0;
pub(super) const WAY_PIPE: usize = 1;
pub(super) const WAY_INODE: usize = 2;

/// In a direction's first word: the state, whether it copies, and its urgent byte.
pub(super) const STATE_MASK: u64 = 0xff;
pub(super) const COPIES: u64 = 1 << 8;
pub(super) const URGENT: u64 = 1 << 9;
pub(super) const URGENT_SHIFT: u32 = 16;
/// And, of a connection that has come from another box, whether the source's FIN had come there.
pub(super) const HAD_FIN: u64 = 1 << 10;

/// In the word of the ports, of which the client's is in the lowest 16 bits and the server's next.
pub(super) const IS_V6: u64 = 1 << 32;
pub(super) const EARLY: u64 = 1 << 33;
