//! A connection moves once, with something in every queue, or half-closed either way.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use pepd_packet::snapshot::{Fin, Snapshot};
use pepd_sys::repair::{close_silently, take};
use pepd_sys::{stream, tcp_info};
use pepd_testbed::traffic::{End, PATIENCE, Pattern, receive, receive_exactly, send};
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;

use crate::ground::{BOXES, Ends, Ground, Opener, Pair, Variation};

/// How a connection is when it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Nothing is under way.
    Idle,
    /// Something is unacknowledged, something unsent, and something unread.
    Full,
    /// This end's FIN is acknowledged.
    FinAcknowledged,
    /// This end's FIN is sent after a few bytes that are not acknowledged.
    FinSent,
    /// The same after many bytes.
    FinSentAfterMany,
    /// This end's FIN waits behind what is unsent.
    FinWaits,
    /// The peer's FIN has come, after something that is unread.
    PeerFin,
    /// Both FINs: this end's is not acknowledged.
    BothFins,
}

const SHAPES: [Shape; 8] = [
    Shape::Idle,
    Shape::Full,
    Shape::FinAcknowledged,
    Shape::FinSent,
    Shape::FinSentAfterMany,
    Shape::FinWaits,
    Shape::PeerFin,
    Shape::BothFins,
];

/// What the peer has sent and this end has not read.
const UNREAD: u64 = 5000;

/// More than a new connection's congestion window.
const MANY: u64 = 30_000;

/// What either end sends after the move, where it still may.
const LATER: u64 = 300_000;

/// Both directions of a connection: what is sent in them, and how much has been.
struct Traffic {
    pair: Pair,
    out: Pattern,
    back: Pattern,
    sent: u64,
    /// Of what the peer has sent.
    read: u64,
    sent_back: u64,
}

impl Traffic {
    fn begin(pair: Pair) -> Result<Self> {
        let mut traffic = Self {
            pair,
            out: Pattern::new(1),
            back: Pattern::new(2),
            sent: 0,
            read: 0,
            sent_back: 0,
        };
        traffic.send_and_receive(1000)?;
        Ok(traffic)
    }

    /// Sends something that the peer gets, and the other way.
    fn send_and_receive(&mut self, length: u64) -> Result<()> {
        let Self {
            pair, out, back, ..
        } = self;
        thread::scope(|scope| {
            let got = scope.spawn(|| receive_exactly(&pair.peer, out, self.sent, length));
            send(&pair.here, out, self.sent, length)?;
            got.join().unwrap()
        })?;
        send(&pair.peer, back, self.sent_back, 1000)?;
        receive_exactly(&pair.here, back, self.read, 1000)?;
        self.sent += length;
        self.sent_back += 1000;
        self.read += 1000;
        Ok(())
    }

    /// Has the peer send what nobody reads.
    fn leave_unread(&mut self) -> Result<()> {
        send(&self.pair.peer, &self.back, self.sent_back, UNREAD)?;
        self.sent_back += UNREAD;
        let here = self.pair.here.as_fd();
        let there = || stream::unread(here).unwrap_or(0) as u64 == UNREAD;
        wait_until(PATIENCE, "what is unread", there)
    }

    /// Sends as much of this as goes without waiting.
    fn send_unanswered(&mut self, most: u64) -> Result<()> {
        let mut here = &self.pair.here;
        here.set_nonblocking(true)?;
        let end = self.sent + most;
        while self.sent < end {
            let piece = usize::try_from(end - self.sent)?;
            match here.write(self.out.piece(self.sent, piece)) {
                Ok(written) => self.sent += written as u64,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends a FIN, and waits until it has left.
    fn shut_down(&self) -> Result<()> {
        self.pair.here.shutdown(Shutdown::Write)?;
        let has_left = || stream::unsent(self.pair.here.as_fd()).unwrap_or(1) == 0;
        wait_until(PATIENCE, "what leaves", has_left)
    }

    fn await_state(&self, state: u8) -> Result<()> {
        let here = self.pair.here.as_fd();
        let has_it = || tcp_info::tcp_info(here).is_ok_and(|info| info.state == state);
        wait_until(PATIENCE, "a state", has_it)
    }

    /// Brings the connection into shape.
    fn shape(&mut self, ground: &Ground, shape: Shape) -> Result<()> {
        let close_wait = 8;
        let ends = Ends::of(&self.pair.here)?;
        let freeze_in = || ground.drop_packets(BOXES[0], "in", &ends);
        match shape {
            Shape::Idle => {}
            Shape::Full => {
                self.leave_unread()?;
                freeze_in()?;
                self.send_unanswered(200_000)?;
                // It does not get this now.
                send(&self.pair.peer, &self.back, self.sent_back, 3000)?;
                self.sent_back += 3000;
            }
            Shape::FinAcknowledged => {
                self.leave_unread()?;
                self.pair.here.shutdown(Shutdown::Write)?;
                self.await_state(5)?;
            }
            Shape::FinSent => {
                freeze_in()?;
                self.send_unanswered(1000)?;
                self.shut_down()?;
            }
            Shape::FinSentAfterMany => {
                // The window opens.
                self.send_and_receive(400_000)?;
                freeze_in()?;
                self.send_unanswered(MANY)?;
                self.shut_down()?;
            }
            Shape::FinWaits => {
                self.leave_unread()?;
                freeze_in()?;
                self.send_unanswered(200_000)?;
                self.pair.here.shutdown(Shutdown::Write)?;
            }
            Shape::PeerFin => {
                self.leave_unread()?;
                self.pair.peer.shutdown(Shutdown::Write)?;
                self.await_state(close_wait)?;
            }
            Shape::BothFins => {
                self.leave_unread()?;
                self.pair.peer.shutdown(Shutdown::Write)?;
                self.await_state(close_wait)?;
                freeze_in()?;
                self.send_unanswered(1000)?;
                self.shut_down()?;
            }
        }
        Ok(())
    }

    /// Checks that a snapshot is what the connection was brought to.
    fn check(&self, snapshot: &Snapshot, shape: Shape, variation: Variation) -> Result<()> {
        let (sending, receiving) = (&snapshot.sending, &snapshot.receiving);
        self.back.verify(self.read, &receiving.unread)?;
        let under_way = [&sending.sent[..], &sending.unsent].concat();
        let first = self.sent - under_way.len() as u64;
        self.out.verify(first, &under_way)?;
        let lengths = (
            sending.sent.len(),
            sending.unsent.len(),
            receiving.unread.len() as u64,
        );
        let fits = match shape {
            Shape::Idle => lengths == (0, 0, 0),
            Shape::Full | Shape::FinWaits => lengths.0 > 0 && lengths.1 > 0 && lengths.2 == UNREAD,
            Shape::FinAcknowledged | Shape::PeerFin => lengths == (0, 0, UNREAD),
            Shape::FinSent => lengths == (1000, 0, 0),
            Shape::FinSentAfterMany => lengths == (usize::try_from(MANY)?, 0, 0),
            Shape::BothFins => lengths == (1000, 0, UNREAD),
        };
        ensure!(fits, "{lengths:?}");
        let fin = match shape {
            Shape::Idle | Shape::Full | Shape::PeerFin => Fin::None,
            Shape::FinWaits => Fin::Waits,
            _ => Fin::Sent,
        };
        ensure!(sending.fin == fin, "{:?}", sending.fin);
        let ended = matches!(shape, Shape::PeerFin | Shape::BothFins);
        ensure!(receiving.ended == ended);
        let agreed = snapshot.agreed;
        let scales = (agreed.send_scale, agreed.receive_scale);
        match variation {
            Variation::Usual => ensure!(agreed.sack && agreed.timestamp.is_some()),
            Variation::WithoutTimestamps => ensure!(agreed.timestamp.is_none()),
            Variation::WithoutScaling => ensure!(scales == (0, 0), "{scales:?}"),
            Variation::WidestScaling => ensure!(scales == (14, 14), "{scales:?}"),
            Variation::WithoutSack => ensure!(!agreed.sack),
            Variation::SmallSegments => ensure!(agreed.mss == 536, "{}", agreed.mss),
        }
        Ok(())
    }

    /// Ends both directions with more that is sent, where it still may be: each end gets all of it, and then
    /// the FIN.
    fn end(self, shape: Shape) -> Result<()> {
        let open = matches!(shape, Shape::Idle | Shape::Full | Shape::PeerFin);
        let peer_open = !matches!(shape, Shape::PeerFin | Shape::BothFins);
        let Self {
            pair, out, back, ..
        } = &self;
        let (sent, sent_back) = (self.sent, self.sent_back);
        let (all, all_back) = (
            sent + if open { LATER } else { 0 },
            sent_back + if peer_open { LATER } else { 0 },
        );
        thread::scope(|scope| {
            let got_first = 1000
                + if shape == Shape::FinSentAfterMany {
                    400_000
                } else {
                    0
                };
            let got = scope.spawn(move || receive(&pair.peer, out, got_first));
            let peer = scope.spawn(move || match peer_open {
                true => {
                    send(&pair.peer, back, sent_back, LATER)?;
                    Ok(pair.peer.shutdown(Shutdown::Write)?)
                }
                false => Ok::<_, anyhow::Error>(()),
            });
            let here = &pair.here;
            let own = scope.spawn(move || match open {
                true => {
                    send(here, out, sent, LATER)?;
                    Ok(here.shutdown(Shutdown::Write)?)
                }
                false => Ok::<_, anyhow::Error>(()),
            });
            match peer_open {
                true => {
                    let (read, end) = receive(here, back, self.read)?;
                    ensure!(
                        (self.read + read, end) == (all_back, End::Fin),
                        "{read} {end:?}"
                    );
                }
                false => receive_exactly(here, back, self.read, all_back - self.read)?,
            }
            own.join().unwrap().context("what this end sends")?;
            peer.join().unwrap().context("what the peer sends")?;
            let (got, end) = got.join().unwrap().context("what the peer gets")?;
            ensure!(
                (got_first + got, end) == (all, End::Fin),
                "{got} of {all} {end:?}"
            );
            Ok(())
        })?;
        let acknowledged = || stream::unacknowledged(pair.here.as_fd()).unwrap_or(1) == 0;
        wait_until(PATIENCE, "the last acknowledgement", acknowledged)?;
        if !peer_open {
            // Its kernel waits for a FIN that has come before.
            close_silently(self.pair.here.into())?;
        }
        Ok(())
    }
}

#[rstest]
fn it_goes_on_in_another_box(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(
        Variation::Usual,
        Variation::WithoutTimestamps,
        Variation::WithoutScaling,
        Variation::WidestScaling,
        Variation::WithoutSack,
        Variation::SmallSegments
    )]
    variation: Variation,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, variation)?;
    for opener in [Opener::Here, Opener::Peer] {
        for shape in SHAPES {
            moves(&ground, variation, opener, shape)
                .with_context(|| format!("{shape:?}, opened by {opener:?}"))?;
        }
    }
    ground.no_resets()
}

fn moves(ground: &Ground, variation: Variation, opener: Opener, shape: Shape) -> Result<()> {
    ground.lead_to(BOXES[0])?;
    let mut traffic = Traffic::begin(ground.connect(opener)?)?;
    traffic.shape(ground, shape)?;
    let snapshot = ground.take(BOXES[0], &traffic.pair.here)?;
    traffic.check(&snapshot, shape, variation)?;
    go_on(ground, traffic, &snapshot, shape)
}

/// What has been sent fills the peer's window, which is no multiple of a segment, and the acknowledgement of it is lost:
/// what is said again fits that window, whatever waits behind it.
#[rstest]
fn what_fills_its_peers_window_goes_on(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Variation::Usual, Variation::WithoutTimestamps)] variation: Variation,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, variation)?;
    for room in [4600, 8000, 12_000, 20_000] {
        let peer = ground.node("peer");
        peer.sysctl("net.ipv4.tcp_rmem", &format!("4096 {room} {room}"))?;
        for opener in [Opener::Here, Opener::Peer] {
            let moved = (|| {
                ground.lead_to(BOXES[0])?;
                let mut traffic = Traffic::begin(ground.connect(opener)?)?;
                let ends = Ends::of(&traffic.pair.here)?;
                ground.drop_packets(BOXES[0], "in", &ends)?;
                traffic.send_unanswered(100_000)?;
                let snapshot = ground.take(BOXES[0], &traffic.pair.here)?;
                let (sending, window) = (&snapshot.sending, snapshot.windows.send);
                let left = usize::try_from(window)?.checked_sub(sending.sent.len());
                let left = left.context("more than the window")?;
                ensure!(
                    !sending.unsent.is_empty() && left < 1460,
                    "{left} of {window}"
                );
                go_on(&ground, traffic, &snapshot, Shape::Idle)
            })();
            moved.with_context(|| format!("{room} bytes, opened by {opener:?}"))?;
        }
    }
    ground.no_resets()
}

/// Has a connection that was taken out of the first box go on in the other, and end there.
fn go_on(ground: &Ground, mut traffic: Traffic, snapshot: &Snapshot, shape: Shape) -> Result<()> {
    let restored = ground.restore(BOXES[1], snapshot)?;
    alike(snapshot, &take(restored.as_fd())?)?;
    let here = ground.switch(BOXES[1], restored)?;
    let before = std::mem::replace(&mut traffic.pair.here, here);
    close_silently(before.into())?;
    traffic.end(shape)?;
    ground.drop_nothing(BOXES[0])
}

/// Checks that the other box's kernel says of it what this one's did, but for what it says again.
fn alike(before: &Snapshot, after: &Snapshot) -> Result<()> {
    ensure!(before.receiving.unread == after.receiving.unread);
    ensure!(before.receiving.next == after.receiving.next);
    ensure!(before.windows == after.windows, "{:?}", after.windows);
    ensure!(before.sending.sequence == after.sending.sequence);
    ensure!(before.sending.sent.starts_with(&after.sending.sent));
    let clocks = (before.agreed.timestamp, after.agreed.timestamp);
    ensure!(clocks.0.is_some() == clocks.1.is_some());
    if let (Some(before), Some(after)) = clocks {
        ensure!(after.wrapping_sub(before).cast_signed() > 0, "{clocks:?}");
    }
    let mut agreed = after.agreed;
    agreed.timestamp = before.agreed.timestamp;
    ensure!(before.agreed == agreed, "{agreed:?}");
    Ok(())
}
