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
        renew_congestion(socket, leg);
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

/// Gives a socket the congestion control of its leg anew, where it has one of that name: a control of
/// pepd's own has been registered again since, and what steers it does not know the one before.
fn renew_congestion(socket: &OwnedFd, leg: &Leg) {
    let Some(name) = leg.own_control() else {
        return;
    };
    let socket = SockRef::from(socket);
    let has = socket.tcp_congestion().unwrap_or_default();
    let has = has.split(|byte| *byte == 0).next().unwrap_or_default();
    if has == name.as_bytes()
        && let Err(error) = socket.set_tcp_congestion(has)
    {
        tracing::debug!(%error, name, "a connection keeps the control that it had");
    }
}
