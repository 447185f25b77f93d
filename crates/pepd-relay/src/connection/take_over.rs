//! Going on with a connection that another process has left.

use std::sync::Arc;
use std::time::Instant;

use pepd_sys::clock;

use crate::connection::direction::Direction;
use crate::connection::establish::{Established, Parties, info};
use crate::connection::forward::Connection;
use crate::connection::leg_socket::LegSocket;
use crate::connection::record::ConnectionRecord;
use crate::connection::state::Way;
use crate::shared::Context;
use crate::slots::found::FoundConnection;

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
        failures,
        ways: [(up, up_pipe), (down, down_pipe)],
    } = found;
    let shared = &context.shared;
    let permit = shared.admission.admit(identity.client.ip());
    let registered = async {
        Ok((
            LegSocket::register_found(client, failures[0]).await?,
            LegSocket::register_found(upstream, failures[1]).await?,
        ))
    };
    let (client, upstream) = match registered.await {
        Ok(legs) => legs,
        Err(error) => {
            let error: std::io::Error = error;
            tracing::warn!(client = %identity.client, server = %identity.server, %error,
                "a connection of the process before cannot go on");
            return None;
        }
    };
    let now = Instant::now();
    let age = clock::monotonic().saturating_sub(identity.accepted);
    let parties = Parties {
        client: identity.client,
        server: identity.server,
        handshake: identity.handshake,
        since: now.checked_sub(age).unwrap_or(now),
    };
    let flow = shared.flows.register_again(
        context.index,
        (identity.id, [up.bytes, down.bytes]),
        info(&context, &shared.settings.load(), parties),
        (client.watch(), upstream.watch()),
        now,
    );
    let lent = |pipe: Option<_>| pipe.map(|pipe| context.pool.lend_again(pipe));
    let connection = Connection {
        memo: slot,
        client,
        upstream,
        up: Direction::go_on(Way::Up, &up, lent(up_pipe)),
        down: Direction::go_on(Way::Down, &down, lent(down_pipe)),
    };
    Some(Established {
        permit,
        record: ConnectionRecord::new(Arc::clone(shared), flow),
        connection,
    })
}
