//! Two legs become one connection: nothing that went out with the upstream leg's SYN is sent twice.

use std::os::fd::{AsFd, OwnedFd};

use pepd_packet::Mark;
use tokio::io::Interest;

use crate::call::Call;
use crate::connection::forward::PAUSE;
use crate::connection::leg::{Failure, Fate, Input, LegIo as _};
use crate::connection::leg_socket::LegSocket;
use crate::connection::recovery::{Figures, Stage};
use crate::connection::upstream::UpstreamError;
use crate::handshake::answered_leg::AnsweredLeg;
use crate::settings::Leg;
use crate::slots::found::figures;

/// The most data that fits into a SYN: the smallest MSS that IPv6 promises, less options.
pub(super) const FIRST_DATA_BYTES: usize = 1200;

/// Two legs that are to be one connection.
pub(super) struct Joined {
    pub(super) client: LegSocket,
    pub(super) upstream: LegSocket,
    /// Bytes of the client's that went out with the SYN.
    pub(super) sent: usize,
}

/// Joins the client leg and the upstream leg that has waited for it.
pub(super) async fn join(
    client: OwnedFd,
    upstream: AnsweredLeg,
    worker: usize,
) -> Result<Joined, UpstreamError> {
    let register = UpstreamError::call(Call::EpollCtl);
    let mut client = LegSocket::register(client).await.map_err(&register)?;
    if upstream.sent > 0 {
        skip(&mut client, upstream.sent).await?;
    }
    let sent = upstream.sent;
    let upstream = upstream.into_socket(worker).await.map_err(&register)?;
    Ok(Joined {
        client,
        upstream,
        sent,
    })
}

/// Joins the client leg and one that a process before this one has opened, and ends the destination's
/// handshake: whether that has been done is not known, and it does no harm to do it twice.
///
/// What went out with its SYN the kernel knows, and how much of that has been taken off the client.
pub(super) async fn join_left(
    client: OwnedFd,
    left: OwnedFd,
    leg: &Leg,
    claimed_mark: Option<Mark>,
    worker: usize,
) -> Result<Joined, UpstreamError> {
    let register = UpstreamError::call(Call::EpollCtl);
    let mut client = LegSocket::register(client).await.map_err(&register)?;
    let fate = fate(&left)?;
    let upstream = LegSocket::register_found(left, fate).await;
    let mut upstream = upstream.map_err(&register)?;
    if !upstream.has_failed() {
        let answered = established(&mut client, &mut upstream);
        let answered = tokio::time::timeout(leg.connect_timeout, answered).await;
        answered.map_err(|_| UpstreamError::Timeout)??;
    }
    let ask = UpstreamError::call(Call::GetSockOpt);
    let there = figures(client.as_fd(), false).map_err(&ask)?;
    let went = figures(upstream.as_fd(), true).map_err(&ask)?;
    let sent = match went.stage {
        // To whom does not matter any more.
        Stage::Closed => 0,
        Stage::Connected { .. } => went.written,
    };
    let read = match there.stage {
        Stage::Connected { fin_received, .. } => there.read.saturating_sub(fin_received.into()),
        Stage::Closed => return Err(UpstreamError::ClientLeft),
    };
    let rest = sent.checked_sub(read).ok_or(UpstreamError::Unclear)?;
    skip(&mut client, usize::try_from(rest).unwrap_or(usize::MAX)).await?;
    let upstream = AnsweredLeg {
        socket: upstream,
        worker,
        sent: 0,
        claimed_mark,
        coming: None,
    };
    upstream.claim(None);
    Ok(Joined {
        client,
        upstream: upstream.into_socket(worker).await.map_err(&register)?,
        sent: usize::try_from(sent).unwrap_or(usize::MAX),
    })
}

/// Tells what has become of a leg that nobody has asked yet: what is closed has failed, whether its
/// error has been taken from it or not.
fn fate(left: &OwnedFd) -> Result<Fate, UpstreamError> {
    let ask = UpstreamError::call(Call::GetSockOpt);
    let Figures {
        stage, error_waits, ..
    } = figures(left.as_fd(), true).map_err(&ask)?;
    let taken = (stage == Stage::Closed && !error_waits).then_some(Failure(libc::ECONNRESET));
    Ok(Fate {
        taken,
        waits: error_waits,
        ended: false,
    })
}

/// Takes off the client leg what the client sent in its SYN, which the destination has already had.
/// It is there, unless the listener had too many such SYNs: then the client sends it again.
pub(super) async fn skip(client: &mut LegSocket, mut len: usize) -> Result<(), UpstreamError> {
    while len > 0 {
        match drop_some(client, len) {
            Input::Bytes(there) => len -= there,
            Input::Empty => client.ready(Some(Interest::READABLE)).await,
            Input::Retry => tokio::time::sleep(PAUSE).await,
            Input::End | Input::Failed => return Err(UpstreamError::ClientLeft),
        }
    }
    Ok(())
}

/// Drops at most `len` bytes that are there. A buffer in [`skip`] itself would be part of every
/// connection's task, for ever.
fn drop_some(client: &mut LegSocket, len: usize) -> Input {
    let mut buffer = [0; FIRST_DATA_BYTES];
    let piece = len.min(buffer.len());
    match client.peek(&mut buffer[..piece], false) {
        Input::Bytes(there) => client.discard(there),
        other => other,
    }
}

/// Waits until the destination has answered.
pub(super) async fn established(
    client: &mut LegSocket,
    upstream: &mut LegSocket,
) -> Result<(), UpstreamError> {
    loop {
        tokio::select! {
            () = upstream.ready(Some(Interest::WRITABLE)) => {
                return match upstream.failure() {
                    None => Ok(()),
                    Some(failure) => Err(UpstreamError::call(Call::Connect)(failure.as_error())),
                };
            }
            () = client.ready(None) => {
                if client.has_failed() {
                    return Err(UpstreamError::ClientLeft);
                }
            }
        }
    }
}
