//! Accepting: the clients that reach a worker's listeners, each with its upstream leg.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::FourTuple;
use pepd_sys::stream;
use pepd_telemetry::Throttle;
use socket2::{Domain, SockAddr, SockRef, Socket};
use tokio::task::JoinSet;

use crate::connection::{Accepted, Upstream, serve};
use crate::essential::essential;
use crate::handshake::table::Claim;
use crate::limits::Permit;
use crate::listener::Listener;
use crate::registered::register;
use crate::settings::Dscp;
use crate::shared::{Context, Shared};
use crate::shortage::is_shortage;
use crate::{sockopts, spare};

/// The pause in accepting when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted in a row before those accepted earlier have their turn.
const ACCEPTS_PER_TURN: u32 = 32;

/// Accepts on every listener until the set is dropped.
pub(crate) fn accept_on(context: &Arc<Context>, listeners: Vec<Listener>) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for listener in listeners {
        set.spawn(essential(accept_loop(Arc::clone(context), listener)));
    }
    set
}

async fn accept_loop(context: Arc<Context>, listener: Listener) {
    let Listener {
        socket,
        domain,
        dscp,
        chosen,
    } = listener;
    let listener = socket;
    let socket = register(&context, || Ok(listener.try_clone()?.into())).await;
    drop(listener);
    loop {
        let Ok(mut guard) = socket.readable().await else {
            return;
        };
        if let Some(chosen) = &chosen {
            // What it has its clients begin with. Those that wait already are given it when they are served.
            _ = SockRef::from(&socket).set_tcp_congestion(chosen.name().as_bytes());
        }
        for _ in 0..ACCEPTS_PER_TURN {
            match accept(&context, socket.as_fd(), domain, dscp) {
                Ok(Some(accepted)) => drop(tokio::spawn(serve(Arc::clone(&context), accepted))),
                Ok(None) => context.shared.counters.source_full.increment(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    guard.clear_ready();
                    break;
                }
                // Nothing is wrong with the connection, which waits.
                Err(error) if error.raw_os_error().is_some_and(is_shortage) => {
                    report_shortage(&context, &error);
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    report_failure(&error);
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Serves clients that another process has accepted, and no more. Whom there is no socket for is reset.
pub(crate) fn serve_all(context: &Arc<Context>, clients: Vec<OwnedFd>) {
    for client in clients {
        match accepted_before(context, client) {
            Ok(accepted) => drop(tokio::spawn(serve(Arc::clone(context), accepted))),
            Err(error) => report_failure(&error),
        }
    }
}

fn accepted_before(context: &Arc<Context>, client: OwnedFd) -> io::Result<Accepted> {
    let socket = SockRef::from(&client);
    let domain = socket.domain()?;
    let address = |address: SockAddr| {
        address
            .as_socket()
            .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
    };
    let (peer, destination) = (
        address(socket.peer_addr()?)?,
        address(socket.local_addr()?)?,
    );
    let settings = context.shared.settings.load();
    let dscp = settings
        .leg_towards(peer.ip())
        .map_or(Dscp::Copy, |leg| leg.dscp);
    let flow = FourTuple {
        client: peer,
        server: destination,
    };
    let upstream = match context.shared.left_legs.claim(flow) {
        Some(left) => Upstream::Left(left),
        None => Upstream::Spare(sockopts::new_socket(domain)?, None),
    };
    Ok(Accepted {
        peer,
        destination,
        upstream,
        domain,
        dscp,
        permit: context.shared.admission.admit(peer.ip()),
        client,
    })
}

/// Accepts only with a socket for the upstream leg in hand, kept among the worker's spare ones until
/// it is used. None where the client's source has as many connections as it may: the client is reset,
/// and so is its upstream leg.
fn accept(
    context: &Arc<Context>,
    listener: BorrowedFd<'_>,
    domain: Domain,
    dscp: Dscp,
) -> io::Result<Option<Accepted>> {
    let socket = if let Some(socket) = spare::take(domain) {
        socket
    } else {
        let socket = sockopts::new_socket(domain)?;
        // Told already here: there may be nothing to accept, now or ever again while the gate is
        // closed.
        context.shared.admission.recovered();
        socket
    };
    let accepted = stream::accept(listener).and_then(|(client, peer)| {
        let destination = SockRef::from(&client).local_addr()?.as_socket();
        Ok((client, peer, destination))
    });
    let (client, peer, destination) = match accepted {
        Ok((client, peer, Some(destination))) => (client, peer, destination),
        Ok(_) => return Err(io::ErrorKind::Unsupported.into()),
        Err(error) => {
            // accept(2) takes a descriptor before it checks whether there is a client: if there is
            // none, there was still a descriptor.
            if error.kind() == io::ErrorKind::WouldBlock {
                context.shared.admission.recovered();
            }
            spare::keep(domain, socket);
            return Err(error);
        }
    };
    context.shared.admission.recovered();
    let flow = FourTuple {
        client: peer,
        server: destination,
    };
    let claimed = claim(&context.shared, flow, domain, socket);
    Ok(claimed.map(|(upstream, permit)| Accepted {
        client,
        peer,
        destination,
        upstream,
        domain,
        dscp,
        permit,
    }))
}

/// Takes the upstream leg as far as it exists: `socket` becomes it, or is kept for the next one where
/// the destination has answered already. None where the client's source has as many as it may.
fn claim(
    shared: &Shared,
    flow: FourTuple,
    domain: Domain,
    socket: Socket,
) -> Option<(Upstream, Permit)> {
    let admission = &shared.admission;
    let client = flow.client.ip();
    match shared.handshakes.accepted(flow, Instant::now()) {
        Claim::Answered(mut answered, ack) => {
            shared.note_pending();
            spare::keep(domain, socket);
            let Some(permit) = admission.try_admit(client) else {
                // Its destination's handshake is reset, and ends no more.
                drop(answered);
                if let Some(ack) = ack {
                    ack.supersede();
                }
                return None;
            };
            // Now that it is counted as one that has come.
            answered.coming = None;
            answered.claim(ack);
            Some((Upstream::Answered(answered), permit))
        }
        Claim::Dialing(syn, dial) => {
            shared.note_pending();
            syn.supersede();
            let permit = admission.try_admit(client)?;
            Some((Upstream::Spare(socket, dial), permit))
        }
        Claim::Unknown => match shared.left_legs.claim(flow) {
            // Its SYN had its turn with the process before this one.
            Some(left) => {
                spare::keep(domain, socket);
                Some((Upstream::Left(left), admission.admit(client)))
            }
            None => {
                let permit = admission.try_admit(client)?;
                Some((Upstream::Spare(socket, None), permit))
            }
        },
    }
}

/// Returns whether the client has left, or its network has failed (accept(2)).
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | TimedOut
    )
}

fn report_failure(error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "accept a connection");
    }
}

fn report_shortage(context: &Context, error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    context.shared.counters.accept_pauses.increment();
    context.shared.admission.exhausted();
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %error, held_back,
            "accepting pauses, and new connections are routed unsplit, until some have ended; \
             raise the limit of open files (LimitNOFILE=) or lower [limits] connections"
        );
    }
}
