//! Sessions that other boxes open: how many at once, and what each of them is about.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_move::machine::Members;
use pepd_move::wire::{Frame, Reason};
use pepd_telemetry::Throttle;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;

use super::take::Taking;
use super::wire::{Ended, Wire};
use super::{Ground, Told};

/// Sessions at once from the addresses of one neighbor; further ones are refused. Whoever is there beside it, or is
/// translated to its address, is in the way of nobody else.
const OF_EACH: usize = 4;

/// Those of addresses that are no neighbor's: they may be one's all the same, and they may be anybody's, who says nothing
/// and is in the way of the others for as long.
const STRANGERS: usize = 4;

/// Returns how many sessions there may be at once with so many neighbors.
pub const fn sessions(neighbors: usize) -> usize {
    OF_EACH * neighbors + STRANGERS
}

/// The pause before what could not be opened is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes what other boxes hand over, for ever.
pub(super) async fn listen(ground: Rc<Ground>, at: SocketAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    let listener = loop {
        match open(at) {
            Ok(listener) => break listener,
            Err(error) => {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%at, %error, held_back,
                        "[move] listen: no connection is taken from other boxes; it is tried again");
                }
                sleep(PAUSE).await;
            }
        }
    };
    let of_each = ground.moves.neighbors.iter();
    let of_each: Vec<_> = of_each.map(|_| Arc::new(Semaphore::new(OF_EACH))).collect();
    let of_strangers = Arc::new(Semaphore::new(STRANGERS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let of_neighbor =
                    neighbor_at(&ground, from.ip()).and_then(|place| of_each.get(place));
                let sessions = Arc::clone(of_neighbor.unwrap_or(&of_strangers));
                let Ok(session) = sessions.try_acquire_owned() else {
                    ground.figures.refused();
                    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                        tracing::warn!(%from, held_back,
                            "who would hand connections over was refused: too many others would, or say nothing");
                    }
                    continue;
                };
                let ground = Rc::clone(&ground);
                tokio::task::spawn_local(async move {
                    serve(&ground, stream, from).await;
                    drop(session);
                });
            }
            // No descriptor, or no memory.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Returns the place of the neighbor that has an address.
fn neighbor_at(ground: &Ground, address: IpAddr) -> Option<usize> {
    ground.moves.neighbors.iter().position(|it| {
        let via = [it.v4.map(IpAddr::from), it.v6.map(IpAddr::from)];
        it.address.ip() == address || via.contains(&Some(address))
    })
}

fn open(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(at),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    // The address may come with the link.
    match at {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => {
            socket.set_freebind_v6(true)?;
            socket.set_only_v6(true)?;
        }
    }
    socket.bind(&at.into())?;
    socket.listen(64)?;
    TcpListener::from_std(socket.into())
}

async fn serve(ground: &Ground, stream: TcpStream, from: SocketAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    match Wire::answer(ground, stream).await {
        Ok((wire, peer, Frame::Offer(offer))) => Taking::take(ground, wire, &peer, offer).await,
        Ok((mut wire, _, Frame::Ask(id))) => {
            let (answer, answered) = oneshot::channel();
            let is_under_way = {
                let taking = ground.taking.borrow();
                let told = taking.get(&id).map(|it| it.tells.send(Told::Asked(answer)));
                told.is_some_and(|told| told.is_ok())
            };
            let mut serves = match is_under_way {
                true => answered.await.unwrap_or_default(),
                false => Members::new(),
            };
            serves.extend(ground.given.borrow().of(id));
            let answer = Frame::Answer(id, serves.into_iter().collect());
            // Whoever asked asks again.
            let _ = wire.send(&answer).await;
        }
        Ok((mut wire, ..)) => {
            let _ = wire.send(&Frame::Abort(Reason::Confused)).await;
        }
        // Somebody who looks whether anybody is here, such as `pepd doctor`.
        Err(Ended::Unheard) => {}
        Err(why) => {
            ground.figures.refused();
            if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                tracing::warn!(%from, %why, held_back, "who would hand connections over was refused");
            }
        }
    }
}
