//! What cannot be taken, or put elsewhere: an error says so, and the connection goes on.

use std::net::TcpStream;
use std::os::fd::AsFd as _;

use anyhow::{Result, ensure};
use pepd_packet::snapshot::{Fin, Snapshot};
use pepd_sys::repair::{RestoreError, TakeError, give_back, restore, take};
use pepd_sys::stream;
use pepd_testbed::traffic::{PATIENCE, Pattern, receive_exactly, send};
use pepd_testbed::{Family, require, wait_until};
use socket2::{Domain, SockFilter, SockRef, Socket, Type};

use crate::ground::{BOXES, Ground, Opener, Pair, Variation};

fn goes_on(pair: &Pair) -> Result<()> {
    let pattern = Pattern::new(9);
    for (from, to) in [(&pair.here, &pair.peer), (&pair.peer, &pair.here)] {
        send(from, &pattern, 0, 1000)?;
        receive_exactly(to, &pattern, 0, 1000)?;
    }
    Ok(())
}

#[test]
fn what_is_no_connection_is_not_taken() -> Result<()> {
    require!(root);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    ensure!(matches!(take(socket.as_fd()), Err(TakeError::State(7))));
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>()?.into())?;
    socket.listen(1)?;
    // The kernel has no repair mode for it.
    let error = take(socket.as_fd()).unwrap_err().to_string();
    ensure!(error.starts_with("set TCP_REPAIR: "), "{error}");
    let opening = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Its SYN-ACK does not come.
    opening.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
    opening.set_nonblocking(true)?;
    ensure!(opening.connect(&socket.local_addr()?).is_err());
    ensure!(matches!(take(opening.as_fd()), Err(TakeError::State(2))));
    let pipe = std::io::pipe()?;
    let error = take(pipe.0.as_fd()).unwrap_err().to_string();
    ensure!(error.starts_with("set TCP_REPAIR: "), "{error}");
    Ok(())
}

#[test]
fn what_is_urgent_is_read_first() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, Variation::Usual)?;
    let pair = ground.connect(Opener::Here)?;
    SockRef::from(&pair.here).set_out_of_band_inline(true)?;
    send(&pair.peer, &Pattern::new(1), 0, 100)?;
    stream::send_urgent(pair.peer.as_fd(), b'!')?;
    let here = pair.here.as_fd();
    let unread = |bytes| move || stream::unread(here).is_ok_and(|it| it == bytes);
    wait_until(PATIENCE, "the urgent byte", unread(101))?;
    ensure!(matches!(take(here), Err(TakeError::Urgent)));
    receive_exactly(&pair.here, &Pattern::new(1), 0, 100)?;
    ensure!(matches!(take(here), Err(TakeError::Urgent)));
    ensure!(stream::receive(here, &mut [0; 2])? == 1);
    take(here)?;
    give_back(here)?;
    goes_on(&pair)?;
    ground.no_resets()
}

#[test]
fn what_is_given_back_goes_on() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V6, Variation::Usual)?;
    let pair = ground.connect(Opener::Peer)?;
    goes_on(&pair)?;
    ground.take(BOXES[0], &pair.here)?;
    let pattern = Pattern::new(2);
    // While it is frozen its peer goes on.
    send(&pair.peer, &pattern, 0, 5000)?;
    ground.drop_nothing(BOXES[0])?;
    give_back(pair.here.as_fd())?;
    receive_exactly(&pair.here, &pattern, 0, 5000)?;
    goes_on(&pair)?;
    ground.no_resets()
}

fn refused(ground: &Ground, snapshot: &Snapshot) -> Result<RestoreError> {
    match restore(ground.socket(BOXES[1])?, snapshot) {
        Ok(_) => anyhow::bail!("it was restored"),
        Err(error) => Ok(error),
    }
}

#[test]
fn what_the_kernel_refuses_is_told() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, Variation::Usual)?;
    let pair = ground.connect(Opener::Here)?;
    goes_on(&pair)?;
    let snapshot = ground.take(BOXES[0], &pair.here)?;
    let restored = ground.restore(BOXES[1], &snapshot)?;
    // It is there already.
    let error = refused(&ground, &snapshot)?;
    ensure!(error.errno() == Some(libc::EADDRNOTAVAIL), "{error}");
    ensure!(error.to_string().starts_with("connect: "), "{error}");
    drop(restored);
    let changed = |change: fn(&mut Snapshot)| {
        let mut other = snapshot.clone();
        change(&mut other);
        refused(&ground, &other).map(|error| error.to_string())
    };
    let error = changed(|it| it.local.set_ip([10, 99, 0, 1].into()))?;
    ensure!(error.starts_with("bind: "), "{error}");
    let error = changed(|it| it.peer.set_ip([0xfd00, 0, 0, 0, 0, 0, 0, 1].into()))?;
    ensure!(error.ends_with("addresses of two families"), "{error}");
    let error = changed(|it| it.agreed.receive_scale = 15)?;
    ensure!(error.ends_with("more than 14 bits"), "{error}");
    let error = changed(|it| {
        it.sending.fin = Fin::Sent;
        it.sending.unsent.push(0);
    })?;
    ensure!(error.ends_with("before its data"), "{error}");
    let error = changed(|it| it.windows.largest = 0)?;
    ensure!(error.starts_with("set TCP_REPAIR_WINDOW: "), "{error}");
    // Nothing of all this has left a trace, here or there.
    let restored = ground.restore(BOXES[1], &snapshot)?;
    drop(restored);
    ground.drop_nothing(BOXES[0])?;
    give_back(pair.here.as_fd())?;
    goes_on(&pair)?;
    let _: TcpStream = pair.here;
    ground.no_resets()
}
