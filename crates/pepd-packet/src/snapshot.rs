//! A connection as it can be taken to another host: what that host's kernel, and its relay, have to know to
//! go on where this one's have stopped.

use std::net::SocketAddr;
use std::time::Duration;

use crate::FourTuple;

/// One end of an established or half-closed connection, at a moment at which nothing came or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's.
    pub peer: SocketAddr,
    /// The TOS byte or traffic class of what it sends, without the bits of ECN.
    pub traffic_class: u8,
    /// What the handshake has settled.
    pub agreed: Agreed,
    /// The direction to the peer.
    pub sending: Sending,
    /// The direction from the peer.
    pub receiving: Receiving,
    /// Both windows.
    pub windows: Windows,
    /// The memory that its socket had.
    pub buffers: Buffers,
}

/// What the two ends have settled in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The most data that the peer takes in a segment, in bytes (RFC 9293, section 3.7.1).
    pub mss: u16,
    /// The shift of the windows that the peer announces, 0 where they are not scaled (RFC 7323, section 2).
    pub send_scale: u8,
    /// The shift of the windows that this end announces, 0 where they are not scaled.
    pub receive_scale: u8,
    /// Whether both say what has come besides (RFC 2018).
    pub sack: bool,
    /// The clock of the timestamps that this end sends, in the kernel's own units; none where there are no
    /// timestamps (RFC 7323, section 3).
    pub timestamp: Option<u32>,
}

/// The direction to the peer. It begins with the first byte that is not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The sequence number of that byte: SND.UNA (RFC 9293, section 3.3.1).
    pub sequence: u32,
    /// What has been sent, and is not acknowledged.
    pub sent: Vec<u8>,
    /// What was to be sent after it.
    pub unsent: Vec<u8>,
    /// Whether a FIN comes after that.
    pub fin: Fin,
}

/// How far the FIN of a direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fin {
    /// There is none.
    None,
    /// It waits behind what is unsent.
    Waits,
    /// It has been sent. One that is acknowledged is taken for one that is not: it is sent again, and so
    /// acknowledged again.
    Sent,
}

/// The direction from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// The sequence number that is expected next, after a FIN that has come: RCV.NXT.
    pub next: u32,
    /// What has come, and nobody has read.
    pub unread: Vec<u8>,
    /// Whether the peer's FIN has come. No socket can be told of it: whoever goes on with this end has to
    /// know that after what is unread comes nothing.
    pub ended: bool,
}

/// The windows of both directions, as the kernel keeps them (struct tcp_repair_window,
/// include/uapi/linux/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The sequence number of the segment that last changed the send window: SND.WL1.
    pub updated_by: u32,
    /// How much the peer takes beyond what it has acknowledged, in bytes: SND.WND.
    pub send: u32,
    /// The most that this has ever been, in bytes.
    pub largest: u32,
    /// How much this end takes beyond [`announced_at`](Self::announced_at), in bytes: RCV.WND.
    pub receive: u32,
    /// The sequence number that was expected when that was announced.
    pub announced_at: u32,
}

/// The memory of a socket, in bytes as the kernel counts them: twice what is asked for (socket(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The receive buffer.
    pub receive: u32,
    /// The send buffer.
    pub send: u32,
    /// Whether the kernel leaves the receive buffer as it is, and does not size it by itself.
    pub receive_fixed: bool,
    /// Whether it leaves the send buffer as it is.
    pub send_fixed: bool,
}

impl Snapshot {
    /// Returns how many bytes of the connection's data it holds.
    #[must_use]
    pub fn data(&self) -> usize {
        self.sending.sent.len() + self.sending.unsent.len() + self.receiving.unread.len()
    }
}

/// A split connection as it can be taken to another host: both its ends there, and what is between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitSnapshot {
    /// The connection, as its client has it.
    pub flow: FourTuple,
    /// The time since it was accepted.
    pub age: Duration,
    /// Whether the client was answered before the server had.
    pub early: bool,
    /// The end that the client is connected to, and the one that is connected to the server.
    pub legs: [Snapshot; 2],
    /// The direction from the client, and the one to it.
    pub ways: [WaySnapshot; 2],
}

/// One direction of a split connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaySnapshot {
    /// How far it has come.
    pub state: WayState,
    /// The bytes that it has delivered since the connection was accepted.
    pub delivered: u64,
    /// What has been read of its source, and not been given to its sink.
    pub in_pipe: Vec<u8>,
}

/// How far a direction of a split connection has come. One whose source or sink has failed does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayState {
    /// Bytes flow.
    Running,
    /// Its source has ended; that is to be passed on.
    ShuttingDown,
    /// Everything has been given to its sink, and the FIN after it.
    Done,
}

impl SplitSnapshot {
    /// Returns how many bytes of the connection's data it holds.
    #[must_use]
    pub fn data(&self) -> usize {
        let legs: usize = self.legs.iter().map(Snapshot::data).sum();
        let pipes: usize = self.ways.iter().map(|way| way.in_pipe.len()).sum();
        legs + pipes
    }
}
