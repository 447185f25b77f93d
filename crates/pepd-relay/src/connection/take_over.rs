//! Going on with a connection that another process has left.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use pepd_sys::clock;
use pepd_telemetry::{FlowInfo, LiveLeg, Side};
use socket2::SockRef;

use crate::connection::direction::Direction;
use crate::connection::establish::{Established, Parties, info, legs, watch};
use crate::connection::forward::Connection;
use crate::connection::leg::Fate;
use crate::connection::leg_socket::LegSocket;
use crate::connection::record::ConnectionRecord;
use crate::connection::state::Way;
use crate::outage;
use crate::probe::OWN_CONTROLS;
use crate::settings::Leg;
use crate::shared::{Context, Shared};
use crate::slots::found::FoundConnection;
use crate::slots::slot::Identity;

/// Registers both legs with the worker's runtime, and enters the connection into the table as what it
/// was. None where the kernel has no memory for that: it is reset.
pub(super) async fn take_over(
    context: Arc<Context>,
    found: FoundConnection,
) -> Option<Established> {
    let FoundConnection {
        identity,
        slot,
        legs: [client, upstream],
        fates,
        ways: [(up, up_pipe), (down, down_pipe)],
        waiting: _,
        after_an_outage,
        came,
        permit,
    } = found;
    let shared = &context.shared;
    let permit = permit.unwrap_or_else(|| shared.admission.admit(identity.client.ip()));
    let settings = shared.settings.load_full();
    let ends = [identity.client, identity.server];
    let legs = legs(&context, &settings, ends);
    for (socket, leg) in [&client, &upstream].into_iter().zip(legs) {
        renew_congestion(socket, leg, shared.resume.as_deref());
        if after_an_outage {
            settle(&context, socket, leg);
        }
    }
    let registered = register([client, upstream], fates).await;
    let registered = registered.inspect_err(|error| {
        tracing::warn!(client = %identity.client, server = %identity.server, %error,
            "a connection of the process before cannot go on");
    });
    let [client, upstream] = registered.ok()?;
    let now = Instant::now();
    let info = FlowInfo {
        came,
        ..info(&context, &settings, parties(&identity, now))
    };
    let flow = shared.flows.register_again(
        context.index,
        (identity.id, [up.bytes, down.bytes]),
        info,
        (client.watch(), upstream.watch()),
        now,
    );
    let lent = |pipe: Option<_>| pipe.map(|pipe| context.pool.lend_again(pipe));
    recover(shared, identity.id, [&client, &upstream], legs);
    let connection = Connection {
        memo: slot,
        client,
        upstream,
        up: Direction::go_on(Way::Up, &up, lent(up_pipe)),
        down: Direction::go_on(Way::Down, &down, lent(down_pipe)),
    };
    let watch = watch(&context, (&flow, &permit), &connection, ends, legs);
    Some(Established {
        permit,
        watch,
        record: ConnectionRecord::new(Arc::clone(shared), flow),
        connection,
    })
}

fn parties(identity: &Identity, now: Instant) -> Parties {
    let age = clock::monotonic().saturating_sub(identity.accepted);
    Parties {
        client: identity.client,
        server: identity.server,
        handshake: identity.handshake,
        since: now.checked_sub(age).unwrap_or(now),
    }
}

async fn register(
    [client, upstream]: [OwnedFd; 2],
    fates: [Fate; 2],
) -> io::Result<[LegSocket; 2]> {
    Ok([
        LegSocket::register_found(client, fates[0]).await?,
        LegSocket::register_found(upstream, fates[1]).await?,
    ])
}

/// Takes from a socket what the process before may have given it for the first moments after an outage.
fn settle(context: &Context, socket: &OwnedFd, leg: &Leg) {
    if let Err(error) = outage::settle_limit(socket.as_fd(), leg) {
        tracing::debug!(%error, "a connection keeps the limit of its timeout");
    }
    if let Some(control) = &context.shared.resume
        && let Err(error) = outage::settle(socket.as_fd(), leg, control)
    {
        tracing::debug!(%error, "a connection keeps what an outage has left");
    }
}

/// Has both get back what an outage has taken from them, if nobody else would see to it.
fn recover(shared: &Arc<Shared>, flow: u64, sockets: [&LegSocket; 2], legs: [&Leg; 2]) {
    let sides = [Side::Client, Side::Upstream];
    for ((side, socket), leg) in sides.into_iter().zip(sockets).zip(legs) {
        let socket = socket.watch();
        outage::recover_left(
            shared,
            Arc::clone(&leg.name),
            LiveLeg { flow, side, socket },
        );
    }
}

/// Gives a socket the congestion control of its leg where it has one of pepd's own: what steers that does not know it,
/// as it has been registered again since, if only by another name, or steers nobody any more. The one that opens
/// windows is [taken away](settle) by itself.
fn renew_congestion(socket: &OwnedFd, leg: &Leg, resume: Option<&str>) {
    let renewed = || {
        let socket = SockRef::from(socket);
        let has = outage::name(socket.tcp_congestion()?);
        if !has.starts_with(OWN_CONTROLS.as_bytes())
            || resume.is_some_and(|it| it.as_bytes() == has)
        {
            return Ok(());
        }
        let name = match leg.own_control() {
            Some(own) => own.as_bytes().to_vec(),
            None => outage::control_of(leg, &socket)?,
        };
        socket.set_tcp_congestion(&name)
    };
    if let Err(error) = renewed() {
        tracing::warn!(leg = %leg.name, %error, "a connection keeps the control that it had, which nothing steers any more");
    }
}
