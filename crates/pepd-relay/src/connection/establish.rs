//! From an accepted client to a connection: opens or claims the upstream leg, and joins the two.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::ip;
use pepd_sys::{clock, sockopt};
use pepd_telemetry::{Counters, FlowInfo, HandshakeMode, Registration, Throttle};
use socket2::{Domain, SockRef, Socket};
use tokio::io::Interest;

use crate::call::Call;
use crate::connection::forward::Connection;
use crate::connection::join::{FIRST_DATA_BYTES, Joined, established, join, join_left, skip};
use crate::connection::leg::{Input, LegIo as _};
use crate::connection::leg_socket::LegSocket;
use crate::connection::record::ConnectionRecord;
use crate::connection::upstream::{self, Connecting, UpstreamError};
use crate::first_window::Place;
use crate::handshake::answered_leg::AnsweredLeg;
use crate::handshake::dial_handle::{DialHandle, ended};
use crate::limits::Permit;
use crate::memory::{Holding, Watch};
use crate::outage::{Links, Returns};
use crate::settings::{Dscp, Leg, Settings, is_self_destined};
use crate::share;
use crate::shared::Context;
use crate::shortage::{self, is_shortage};
use crate::slots::slot::{Identity, Slot};
use crate::sockopts;

/// The time for which a SYN with a Fast Open cookie waits for the client's first data. The client's
/// third segment has just arrived; what it has to say first is right behind.
const FIRST_DATA_WAIT: Duration = Duration::from_millis(10);

/// A connection that has been accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) client: OwnedFd,
    pub(crate) peer: SocketAddr,
    /// The address that the client wants to reach.
    pub(crate) destination: SocketAddr,
    pub(crate) upstream: Upstream,
    pub(crate) domain: Domain,
    pub(crate) dscp: Dscp,
    pub(crate) permit: Permit,
}

/// The state of the upstream leg when the client is accepted.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// The leg: its destination answered while the client's SYN was held.
    Answered(AnsweredLeg),
    /// The same, from a process before this one.
    Left(OwnedFd),
    /// A fresh socket of the same family, so that an accepted connection cannot fail for want of a
    /// descriptor; and the dial, which has been told to end and whose socket still has the client's
    /// port.
    Spare(Socket, Option<DialHandle>),
}

impl Upstream {
    fn handshake(&self) -> HandshakeMode {
        match self {
            Self::Answered(_) | Self::Left(_) => HandshakeMode::EndToEnd,
            Self::Spare(..) => HandshakeMode::Early,
        }
    }
}

/// A connection that has both its legs.
pub(super) struct Established {
    pub(super) permit: Permit,
    pub(super) record: ConnectionRecord,
    /// Left before the permit, which says that it is counted at all.
    pub(super) watch: Watch,
    pub(super) connection: Connection,
}

/// Opens or claims the upstream leg, and enters the connection into the table.
pub(super) async fn establish(context: Arc<Context>, accepted: Accepted) -> Option<Established> {
    let counters = &*context.shared.counters;
    let Accepted {
        client,
        peer,
        destination,
        upstream,
        domain,
        dscp,
        permit,
    } = accepted;
    if is_self_destined(destination.ip()) {
        counters.refused.increment();
        return None;
    }
    counters.accepted.increment();
    let since = Instant::now();
    let syn_dscp = copy_dscp(&client, domain, dscp);
    let settings = context.shared.settings.load_full();
    // Of the client, and of the destination.
    let ends = [peer, destination];
    let legs = legs(&context, &settings, ends);
    let handshake = upstream.handshake();
    let opened = match upstream {
        Upstream::Answered(upstream) => join(client, upstream, context.index)
            .await
            .map(|legs| (legs, true)),
        Upstream::Left(left) => {
            let mark = settings.claimed_mark(legs[1]);
            join_left(client, left, legs[1], mark, context.index)
                .await
                .map(|legs| (legs, true))
        }
        Upstream::Spare(spare, before) => {
            if let Some(before) = before {
                ended(&before).await;
            }
            let links = &context.shared.links;
            open(client, spare, (peer, destination), legs[1], syn_dscp, links).await
        }
    };
    let joined = judge(opened, counters, peer, destination)?;
    choose(&joined.client, legs[0]);
    tell_shares(&joined, legs, &settings, ends);
    let parties = Parties {
        client: peer,
        server: destination,
        handshake,
        since,
    };
    let flow = register(&context, &joined, &settings, parties);
    let connection = note(&context, joined, &flow, parties);
    let watch = watch(&context, (&flow, &permit), &connection, ends, legs);
    let record = ConnectionRecord::new(Arc::clone(&context.shared), flow);
    Some(Established {
        permit,
        record,
        watch,
        connection,
    })
}

/// Counts and reports what is wrong with the upstream leg: that there is none, or that it does not
/// have the client's port.
fn judge(
    opened: Result<(Joined, bool), UpstreamError>,
    counters: &Counters,
    client: SocketAddr,
    destination: SocketAddr,
) -> Option<Joined> {
    match opened {
        Ok((joined, own_port)) => {
            if !own_port {
                counters.other_port.increment();
                report_other_port(client, destination);
            }
            Some(joined)
        }
        Err(error) => {
            // The client's socket is gone by now, and so the client has got its RST.
            match error {
                UpstreamError::ClientLeft => counters.client_failed.increment(),
                _ => counters.unreachable.increment(),
            }
            tracing::debug!(%client, %destination, %error, "no upstream leg");
            None
        }
    }
}

/// Gives a client leg the congestion control that is chosen now. It goes on with that of its listener where the kernel
/// does not take it.
fn choose(client: &LegSocket, leg: &Leg) {
    if let Err(error) = sockopts::apply_chosen(client.as_fd(), leg) {
        tracing::debug!(leg = &*leg.name, %error, "a client leg keeps the control that it has");
    }
}

/// Tells both legs' controls what the connection counts as, where they share a rate.
fn tell_shares(
    joined: &Joined,
    legs: [&Leg; 2],
    settings: &Settings,
    [client, destination]: [SocketAddr; 2],
) {
    let shares = legs.map(Leg::sharing);
    if shares.iter().all(Option::is_none) {
        return;
    }
    let weight = share::weight(&settings.weights, client, destination);
    let sharing = [&joined.client, &joined.upstream].into_iter().zip(shares);
    for (socket, share) in sharing.filter_map(|(socket, share)| Some((socket, share?))) {
        // It shares by itself then.
        if let Err(error) = share::tell(socket.as_fd(), share, weight) {
            tracing::debug!(%client, %destination, %error, "share a leg's rate");
        }
    }
}

/// The parties of a connection, with how and since when they are connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parties {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) handshake: HandshakeMode,
    pub(super) since: Instant,
}

/// Enters the connection into the table of flows.
fn register(
    context: &Context,
    joined: &Joined,
    settings: &Settings,
    parties: Parties,
) -> Registration {
    context.shared.flows.register(
        context.index,
        info(context, settings, parties),
        joined.client.watch(),
        joined.upstream.watch(),
        Instant::now(),
    )
}

/// Gives what the table of flows is told of a connection.
pub(super) fn info(context: &Context, settings: &Settings, parties: Parties) -> FlowInfo {
    let unnamed = &context.shared.unnamed_leg.name;
    let names = |address| {
        let campus = settings.campus_of(address);
        let leg = campus.and_then(|campus| settings.legs.get(campus.leg));
        (
            Arc::clone(campus.map_or(unnamed, |campus| &campus.name)),
            Arc::clone(leg.map_or(unnamed, |leg| &leg.name)),
        )
    };
    let (client_campus, client_profile) = names(parties.client.ip());
    let (server_campus, upstream_profile) = names(parties.server.ip());
    FlowInfo {
        client: parties.client,
        server: parties.server,
        client_campus,
        server_campus,
        client_profile,
        upstream_profile,
        handshake: parties.handshake,
        accepted: parties.since,
        came: None,
    }
}

/// Notes the connection for whoever goes on with it if this process dies; nothing has flowed yet but
/// what went out with the SYN.
fn note(context: &Context, joined: Joined, flow: &Registration, parties: Parties) -> Connection {
    let Joined {
        client,
        upstream,
        sent,
    } = joined;
    let identity = Identity {
        id: flow.id(),
        client: parties.client,
        server: parties.server,
        handshake: parties.handshake,
        accepted: clock::monotonic().saturating_sub(parties.since.elapsed()),
    };
    let legs = [client.as_fd(), upstream.as_fd()];
    let slot = Slot::begin(&context.shared.slots, &identity, legs, None);
    let mut connection = Connection::new(client, upstream, slot);
    connection.up.sent_early(sent);
    connection
}

/// Returns the legs of a connection, towards each of its ends.
pub(super) fn legs<'a>(
    context: &'a Context,
    settings: &'a Settings,
    ends: [SocketAddr; 2],
) -> [&'a Leg; 2] {
    ends.map(|end| {
        let leg = settings.leg_towards(end.ip());
        leg.unwrap_or(&context.shared.unnamed_leg)
    })
}

/// Has both sockets counted, and looked after and learned from where their legs ask for that.
pub(super) fn watch(
    context: &Context,
    (flow, permit): (&Registration, &Permit),
    connection: &Connection,
    ends: [SocketAddr; 2],
    legs: [&Leg; 2],
) -> Watch {
    let memory = context.shared.admission.memory();
    let settings = context.shared.settings.load();
    let (kernel, now) = (settings.kernel_buffers, Instant::now());
    let places = Place::of_both(ends, legs, &settings);
    let sockets = [&connection.client, &connection.upstream];
    context.flights.enter(&places, sockets, now);
    let [client, upstream] = legs;
    let legs = [
        (client, connection.client.watch()),
        (upstream, connection.upstream.watch()),
    ];
    let mut holding = Holding::begin(permit.count(), legs, kernel, &memory, now);
    holding.learn(places);
    context.watched.enter(flow.id(), holding)
}

/// Gives the DSCP of the client's SYN, with which the client leg answers if that is its `dscp`.
fn copy_dscp(client: &OwnedFd, domain: Domain, dscp: Dscp) -> u8 {
    // The longest IP header and the longest TCP header (RFC 791, RFC 9293).
    let mut headers = [0; 120];
    let of_syn = sockopt::saved_syn(client.as_fd(), &mut headers)
        .ok()
        .and_then(|len| ip::dscp(&headers[..len]))
        .unwrap_or(0);
    if dscp == Dscp::Copy
        && of_syn != 0
        && let Err(error) = sockopts::set_dscp(client.as_fd(), domain, of_syn)
    {
        tracing::debug!(%error, "client leg");
    }
    of_syn
}

/// Opens the upstream leg; gives the connection, and whether that leg has the client's port.
async fn open(
    client: OwnedFd,
    spare: Socket,
    parties: (SocketAddr, SocketAddr),
    leg: &Leg,
    dscp: u8,
    links: &Links,
) -> Result<(Joined, bool), UpstreamError> {
    let (peer, destination) = parties;
    let register = UpstreamError::call(Call::EpollCtl);
    let _newcomer = links.dial(&leg.name);
    let mut returns = links.wait();
    let mut connecting = connect(Ok(spare), peer, destination, leg, dscp).await?;
    let mut client = LegSocket::register(client).await.map_err(&register)?;
    let mut sent = 0;
    if connecting.deferred {
        sent = send_first(&mut client, &connecting.socket).await?;
    }
    let upstream = loop {
        let mut upstream = LegSocket::register(connecting.socket.into())
            .await
            .map_err(&register)?;
        // What went out with a SYN is the kernel's to send again.
        let redial = sent == 0;
        let answered = tokio::select! {
            biased;
            answered = established(&mut client, &mut upstream) => Some(answered),
            () = tokio::time::sleep(leg.connect_timeout) => Some(Err(UpstreamError::Timeout)),
            () = returns.of(&leg.name), if redial => None,
        };
        let waits = match answered {
            Some(Ok(())) => break upstream,
            Some(Err(UpstreamError::ClientLeft)) => return Err(UpstreamError::ClientLeft),
            Some(Err(_)) if redial && links.is_gone(&leg.name) => true,
            Some(Err(error)) => return Err(error),
            None => false,
        };
        // Anew: a SYN that was lost would be sent again only when the kernel's doubled timer runs out.
        // Whoever else has the descriptor for a moment, it does not keep the client's port.
        let _ = SockRef::from(&upstream.as_fd()).shutdown(Shutdown::Both);
        drop(upstream);
        if waits {
            link_is_back(&mut client, &mut returns, &leg.name).await?;
        }
        connecting = connect(new_socket(destination), peer, destination, leg, dscp).await?;
    };
    let joined = Joined {
        client,
        upstream,
        sent,
    };
    Ok((joined, connecting.own_port))
}

/// Starts to connect; where the kernel lacks memory for it, again and again for some seconds, each
/// time with a new socket.
async fn connect(
    mut socket: Result<Socket, UpstreamError>,
    peer: SocketAddr,
    destination: SocketAddr,
    leg: &Leg,
    dscp: u8,
) -> Result<Connecting, UpstreamError> {
    let mut pauses = shortage::pauses();
    loop {
        let connecting =
            socket.and_then(|socket| upstream::connect(socket, peer, destination, leg, dscp));
        let error = match connecting {
            Err(error) if error.errno().is_some_and(is_shortage) => error,
            result => return result,
        };
        let Some(pause) = pauses.next() else {
            return Err(error);
        };
        tokio::time::sleep(pause).await;
        socket = new_socket(destination);
    }
}

fn new_socket(destination: SocketAddr) -> Result<Socket, UpstreamError> {
    sockopts::new_socket(Domain::for_address(destination))
        .map_err(UpstreamError::call(Call::Socket))
}

/// Waits until the leg's link is back, for as long as the client does.
async fn link_is_back(
    client: &mut LegSocket,
    returns: &mut Returns,
    leg: &str,
) -> Result<(), UpstreamError> {
    while !client.has_failed() {
        tokio::select! {
            () = returns.of(leg) => return Ok(()),
            () = client.ready(None) => {}
        }
    }
    Err(UpstreamError::ClientLeft)
}

/// Sends the deferred SYN with what the client says first, or without data where it waits for
/// the server to speak. Gives the number of bytes sent, which the client leg no longer holds.
async fn send_first(client: &mut LegSocket, socket: &Socket) -> Result<usize, UpstreamError> {
    let readable = client.ready(Some(Interest::READABLE));
    let waited = tokio::time::timeout(FIRST_DATA_WAIT, readable).await;
    // The buffer is not there before the wait: it would be part of every connection's task, for
    // ever.
    let mut first = [0; FIRST_DATA_BYTES];
    let speaks_first = waited.is_ok() && !client.has_urgent();
    let len = match speaks_first.then(|| client.peek(&mut first, false)) {
        Some(Input::Bytes(len)) => len,
        _ => 0,
    };
    let sent = upstream::send_deferred(socket, &first[..len])?;
    skip(client, sent).await?;
    Ok(sent)
}

/// Logs that a server sees another port than its client's.
fn report_other_port(client: SocketAddr, destination: SocketAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::info!(
            %client, %destination, held_back,
            "the client's port is taken on this host: the server sees another one"
        );
    }
}
