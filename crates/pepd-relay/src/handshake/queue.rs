//! Reading one queue: SYNs from clients, what upstream legs without a client acknowledge, and ICMP
//! errors that this host makes about SYNs of its own.
//!
//! An upstream leg acknowledges its destination's answer 200 ms after that, by itself, and again
//! when the destination repeats it. That would end the destination's handshake, and is withheld
//! until the client's own has ended. Where a client takes less time, nothing comes here.
//!
//! Why ICMP errors: where the next hop does not answer ARP or neighbour discovery, the kernel
//! sends the ICMP error to the source of the SYN that it could not deliver. For a spoofed
//! socket that is the client, who would not recognise it (the sequence number is not its own),
//! while the socket never hears of it. So the error is taken on its way out, and the client
//! gets one about its own SYN.
//!
//! RSTs of clients come too. Where a destination's answers to the client take another way, the
//! client gets an answer to the upstream leg's SYN, which is not its own, and so resets it; the leg
//! waits in vain. Such a SYN is routed, behind its RST, and so are those that follow from there. Such
//! a RST has the number that follows that of the leg's SYN, which nobody else knows.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::tcp::{self, Reset, Syn};
use pepd_packet::{FourTuple, icmp};
use pepd_sys::nfqueue::{self, Hook, MESSAGE_BYTES, Queue};
use pepd_telemetry::UnsplitReason;

use super::connect;
use super::dial_handle::DialHandle;
use super::evicted::let_go;
use super::queued_packet::{self, QueuedPacket};
use super::table::{FinalAck, Received, ReceivedSyn, SynAction};
use super::verdict::SynVerdict;
use crate::asymmetric_routes::AsymmetricRoute;
use crate::gate_history::GateWatch;
use crate::registered::register;
use crate::settings::{WhileGone, is_self_destined};
use crate::shared::{Context, Shared};

/// The interval at which the reader looks at the clock.
const TICK: Duration = Duration::from_millis(100);

/// The time after which what waits may have been repeated meanwhile: a client waits a second (RFC
/// 6298). If what repeats it was routed, its connection may be established.
const LATE: Duration = Duration::from_millis(700);

/// Packets read in a row before connections have their turn.
const PACKETS_PER_TURN: usize = 64;

/// The same for those that are late, which are soon dealt with.
const LATE_PACKETS_PER_TURN: usize = 1024;

/// Reads the queue until the task is dropped.
pub(crate) async fn read(context: Arc<Context>, queue: Arc<Queue>) {
    let _reading = Reading(Arc::clone(&queue));
    // A second descriptor of the same socket: the verdicts need the first one everywhere.
    let socket = register(&context, || queue.as_fd().try_clone_to_owned()).await;
    let mut buffer = vec![0; MESSAGE_BYTES];
    let mut tick = tokio::time::interval(TICK);
    let mut backlog = Backlog::new(Instant::now());
    loop {
        let guard = tokio::select! {
            guard = socket.readable() => guard.ok(),
            _ = tick.tick() => None,
        };
        queued_packet::retry(&queue);
        let now = Instant::now();
        let late = backlog.may_be_late(&queue, &context.shared.gate, now);
        let turn = if late {
            LATE_PACKETS_PER_TURN
        } else {
            PACKETS_PER_TURN
        };
        if let Err(error) = read_some(&context, &queue, &mut buffer, turn, late) {
            // Where it failed for another reason there may be more, for the next tick.
            if error.kind() == io::ErrorKind::WouldBlock {
                backlog.emptied(&queue, now);
            }
            if let Some(mut guard) = guard {
                guard.clear_ready();
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Somebody reads the queue. Once this is dropped, nobody accepts the clients whose SYNs have not
/// gone on to the listener yet.
struct Reading(Arc<Queue>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

/// The time that what is in the queue may have waited, and whether anything was routed meanwhile.
struct Backlog {
    /// Everything that is there has come after this.
    emptied: Instant,
    /// Packets that, when last asked, had found no room in the queue and so were routed.
    overflowed: u32,
    /// Whether it has been asked since the queue was empty.
    asked: bool,
}

impl Backlog {
    fn new(now: Instant) -> Self {
        Self {
            emptied: now,
            overflowed: 0,
            asked: false,
        }
    }

    /// Notes that everything that had come until `now` has been read.
    fn emptied(&mut self, queue: &Queue, now: Instant) {
        self.emptied = now;
        if std::mem::take(&mut self.asked) {
            self.overflowed = queue.overflowed().unwrap_or(self.overflowed);
        }
    }

    /// Returns whether a SYN in the queue may repeat, or be repeated by, one that was routed. A
    /// worker that is slow, or was paused for a moment, holds its SYNs all the same: the
    /// retransmissions are behind them in the queue.
    fn may_be_late(&mut self, queue: &Queue, gate: &GateWatch, now: Instant) -> bool {
        if now.saturating_duration_since(self.emptied) < LATE {
            return false;
        }
        self.asked = true;
        let overflowed = queue.overflowed().unwrap_or(u32::MAX);
        overflowed != self.overflowed || gate.may_have_been_shut_since(self.emptied, now)
    }
}

/// Reads up to `turn` packets; the error says why there are no more.
fn read_some(
    context: &Arc<Context>,
    queue: &Arc<Queue>,
    buffer: &mut [u8],
    turn: usize,
    late: bool,
) -> io::Result<()> {
    for _ in 0..turn {
        let len = queue.receive(buffer)?;
        for packet in nfqueue::packets(buffer.get(..len).unwrap_or_default()) {
            let queued = QueuedPacket::new(queue, packet.id, packet.mark);
            match packet.hook {
                Hook::In => take_syn(context, queued, packet.payload, late),
                Hook::Out => take_own(context, queued, packet.payload),
            }
        }
    }
    Ok(())
}

/// Returns the verdict of a SYN whose upstream leg's link is gone, unless it is to wait.
fn verdict_while_gone(shared: &Shared, destination: IpAddr) -> Option<SynVerdict> {
    let settings = shared.settings.load();
    let leg = settings.leg_towards(destination)?;
    let verdict = match leg.while_gone {
        WhileGone::Wait => return None,
        WhileGone::Refuse => SynVerdict::RefusedLinkGone,
        WhileGone::Route => SynVerdict::Bypass(UnsplitReason::LinkGone),
    };
    shared.links.is_gone(&leg.name).then_some(verdict)
}

fn take_syn(context: &Arc<Context>, packet: QueuedPacket, bytes: &[u8], late: bool) {
    let shared = &context.shared;
    if let Some(reset) = Reset::read(bytes) {
        take_reset(context, packet, reset);
        return;
    }
    let syn = Syn::read(bytes).filter(|syn| !is_self_destined(syn.four_tuple.server.ip()));
    let Some(syn) = syn else {
        shared.decide(packet, SynVerdict::Bypass(UnsplitReason::Unreadable));
        return;
    };
    if let Some(verdict) = verdict_while_gone(shared, syn.four_tuple.server.ip()) {
        shared.decide(packet, verdict);
        return;
    }
    let received = ReceivedSyn {
        flow: syn.four_tuple,
        number: syn.number,
        packet,
        late,
    };
    let Received {
        evicted,
        action,
        flood,
    } = shared.handshakes.on_syn(received, Instant::now());
    if let Some(flood) = flood {
        shared.admission.note_flood(flood, Instant::now());
    }
    // Before the new one needs its address and port.
    let_go(shared, evicted);
    match action {
        SynAction::Decide(packet, verdict) => shared.decide(packet, verdict),
        SynAction::Dial(ticket) => {
            shared.counters.held.increment();
            let flow = syn.four_tuple;
            let dial = tokio::spawn(connect::dial(Arc::clone(context), syn, ticket));
            let dial = DialHandle::new(dial.abort_handle());
            shared
                .handshakes
                .dial_started(flow, ticket, dial, Instant::now());
            shared.note_pending();
        }
        SynAction::Nothing => {}
    }
}

fn take_reset(context: &Arc<Context>, packet: QueuedPacket, reset: Reset) {
    let shared = &context.shared;
    // First, so that it does not meet the connection that the SYN opens.
    shared.decide(packet, SynVerdict::Pass);
    let flow = reset.four_tuple;
    let leg = shared.handshakes.dialed_leg(flow);
    // Anybody could have sent it otherwise. The leg is this worker's: packets of the same addresses
    // are in the same queue.
    if !leg.is_some_and(|leg| leg.is_reset_by(reset.number, context.index)) {
        return;
    }
    let decided = shared.handshakes.client_reset(flow, Instant::now());
    if let Some((syn, verdict)) = decided {
        let route = AsymmetricRoute {
            source: flow.client.ip(),
            destination: flow.server.ip(),
        };
        shared.admission.note_asymmetric(route, Instant::now());
        shared.decide(syn, verdict);
        shared.note_pending();
    }
}

/// Takes a packet of this host's own.
fn take_own(context: &Arc<Context>, packet: QueuedPacket, bytes: &[u8]) {
    match tcp::read_ack(bytes) {
        Some(flow) => take_ack(context, packet, flow),
        None => take_error(context, packet, bytes),
    }
}

fn take_ack(context: &Arc<Context>, packet: QueuedPacket, flow: FourTuple) {
    let shared = &context.shared;
    match shared.handshakes.final_ack(flow, packet, Instant::now()) {
        FinalAck::Release(ack) => {
            let settings = shared.settings.load();
            let leg = settings.leg_towards(flow.server.ip());
            match leg.and_then(|leg| settings.claimed_mark(leg)) {
                Some(mark) => ack.release_as(mark),
                None => ack.release(),
            }
        }
        FinalAck::Drop(ack) => ack.supersede(),
        FinalAck::Withheld => {}
    }
}

/// Returns whether a dial of this box's is about it, and the link that it would go by is gone.
fn waits_for_link(context: &Context, flow: FourTuple) -> bool {
    let shared = &context.shared;
    let settings = shared.settings.load();
    let leg = settings.leg_towards(flow.server.ip());
    leg.is_some_and(|leg| shared.links.is_gone(&leg.name))
        && shared.handshakes.dialed_leg(flow).is_some()
}

fn take_error(context: &Arc<Context>, packet: QueuedPacket, bytes: &[u8]) {
    let shared = &context.shared;
    let read = icmp::read_error(bytes);
    let error = read.and_then(|(flow, error)| Some((flow, connect::unreachable(error)?)));
    if error.is_some_and(|(flow, _)| waits_for_link(context, flow)) {
        // While the link is gone this host has no way there just now: that is not the destination's word.
        packet.supersede();
        return;
    }
    let decided = error.and_then(|(flow, unreachable)| {
        shared
            .handshakes
            .icmp_error(flow, unreachable, Instant::now())
    });
    match decided {
        Some((syn, verdict)) => {
            packet.supersede();
            shared.decide(syn, verdict);
            shared.note_pending();
        }
        // About a connection of somebody else's.
        None => packet.release(),
    }
}
