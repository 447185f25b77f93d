//! The daemon's process dies while connections begin and end: each of them is whole, and each ends as it
//! would have.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use pepd_sys::sockopt;
use pepd_sys::stream::at_urgent_mark;
use pepd_testbed::traffic::{
    self, End, Pair, Pattern, Rng, accept, await_event, connect, read, receive, receive_exactly,
    send, send_first,
};
use pepd_testbed::{Family, Stage, Via, World, require};
use rstest::rstest;
use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::{LIMIT, PEPD};

/// The deaths in one test.
const DEATHS: usize = 20;

/// What a connection carries each way at most.
const MOST: u64 = 300_000;

/// A connection from its first SYN to its end.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// A question with its FIN, and the answer with its own.
    Question,
    /// The server speaks first, and ends first.
    Greeting,
    /// The client resets it once it has all that the server has sent.
    ResetByClient,
    /// The server resets it once it has all that the client has sent.
    ResetByServer,
    /// A byte amid the question is urgent.
    Urgent,
    /// The question is in the SYN (RFC 7413).
    InTheSyn,
}

impl Course {
    const ALL: [Self; 6] = [
        Self::Question,
        Self::Greeting,
        Self::ResetByClient,
        Self::ResetByServer,
        Self::Urgent,
        Self::InTheSyn,
    ];

    /// Makes one connection, and takes it to its end.
    fn run(self, world: &World, listener: &TcpListener, rng: &mut Rng) -> Result<()> {
        let pattern = Pattern::new(rng.bits());
        let [up, down] = [0, 0].map(|_| length(rng));
        if matches!(self, Self::InTheSyn) {
            return in_the_syn(world, listener, &pattern, (up.max(1), down));
        }
        let pair = open(world, listener)?;
        match self {
            Self::Question | Self::InTheSyn => question(&pair, &pattern, up, down),
            Self::Greeting => question(&pair.swapped(), &pattern, up, down),
            Self::ResetByClient => reset_by(pair.swapped(), &pattern, down),
            Self::ResetByServer => reset_by(pair, &pattern, up),
            Self::Urgent => urgent(&pair, &pattern, up, down),
        }
    }
}

/// Gives a length of which the short ones are as likely as the long ones.
fn length(rng: &mut Rng) -> u64 {
    let most = [0, 1, 1000, MOST][usize::try_from(rng.between(0, 3)).unwrap_or(0)];
    rng.between(0, most)
}

fn open(world: &World, listener: &TcpListener) -> Result<Pair> {
    let client = connect(world.client(), listener.local_addr()?)?;
    let server = accept_from(listener, &client)?;
    Ok(Pair { client, server })
}

/// Accepts the client's connection, once that has begun.
///
/// Its SYN may have been lost with whoever held it, sent again, and routed, as whoever follows was not up
/// yet. Then its server has seen another connection before, that is reset; until then it has no other
/// with these addresses and ports.
fn accept_from(listener: &TcpListener, client: &TcpStream) -> Result<TcpStream> {
    loop {
        let (server, peer) = accept(listener)?;
        ensure!(peer == client.local_addr()?, "{peer} is not {client:?}");
        if server.take_error()?.is_none() {
            return Ok(server);
        }
    }
}

fn open_fast(world: &World, listener: &TcpListener) -> Result<TcpStream> {
    let server = listener.local_addr()?;
    world.client().run(|| {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
        socket.connect(&server.into())?;
        socket.set_read_timeout(Some(traffic::PATIENCE))?;
        Ok(socket.into())
    })
}

/// The client's bytes and its FIN, then the server's and its own.
fn question(pair: &Pair, pattern: &Pattern, up: u64, down: u64) -> Result<()> {
    whole(&pair.client, &pair.server, pattern, up).context("question")?;
    whole(&pair.server, &pair.client, pattern, down).context("answer")
}

/// Sends `length` bytes and a FIN, and receives all of it.
fn whole(from: &TcpStream, to: &TcpStream, pattern: &Pattern, length: u64) -> Result<()> {
    thread::scope(|scope| {
        let got = scope.spawn(|| receive(to, pattern, 0));
        send(from, pattern, 0, length)?;
        from.shutdown(Shutdown::Write)?;
        let got = got.join().unwrap()?;
        ensure!(got == (length, End::Fin), "{got:?} of {length}");
        Ok(())
    })
}

/// The same, with what the client says first in its SYN. That SYN may be sent again, and routed then: a
/// server has to bear with what it says twice (RFC 7413, section 2.1).
fn in_the_syn(
    world: &World,
    listener: &TcpListener,
    pattern: &Pattern,
    (up, down): (u64, u64),
) -> Result<()> {
    let client = open_fast(world, listener)?;
    let first = pattern.piece(0, usize::try_from(up.min(1000))?);
    send_first(&client, first)?;
    let said = first.len() as u64;
    let server = thread::scope(|scope| {
        let server = scope.spawn(|| {
            loop {
                let server = accept_from(listener, &client)?;
                match receive(&server, pattern, 0)? {
                    (got, End::RESET) if got <= said => {}
                    got => {
                        ensure!(got == (up, End::Fin), "{got:?} of {up}");
                        return Ok(server);
                    }
                }
            }
        });
        send(&client, pattern, said, up - said)?;
        client.shutdown(Shutdown::Write)?;
        server.join().unwrap()
    })?;
    whole(&server, &client, pattern, down).context("answer")
}

/// The client sends, and the server resets it once it has everything: the client sees that, and nothing
/// else.
fn reset_by(pair: Pair, pattern: &Pattern, length: u64) -> Result<()> {
    let Pair { client, server } = pair;
    thread::scope(|scope| {
        let got = scope.spawn(|| receive_exactly(&server, pattern, 0, length));
        send(&client, pattern, 0, length)?;
        got.join().unwrap()
    })?;
    SockRef::from(&server).set_linger(Some(Duration::ZERO))?;
    drop(server);
    let seen = receive(&client, pattern, 0)?;
    ensure!(seen == (0, End::RESET), "{seen:?}");
    Ok(())
}

/// A question one byte of which is urgent, at its place; then the answer.
fn urgent(pair: &Pair, pattern: &Pattern, up: u64, down: u64) -> Result<()> {
    SockRef::from(&pair.server).set_out_of_band_inline(true)?;
    let middle = up / 2;
    thread::scope(|scope| {
        let got = scope.spawn(|| marked(&pair.server, pattern));
        send(&pair.client, pattern, 0, middle)?;
        SockRef::from(&pair.client).send_out_of_band(pattern.piece(middle, 1))?;
        send(&pair.client, pattern, middle + 1, up - middle)?;
        pair.client.shutdown(Shutdown::Write)?;
        let got = got.join().unwrap()?;
        ensure!(
            got == (up + 1, vec![middle]),
            "{got:?} of {}, {middle}",
            up + 1
        );
        Ok::<_, anyhow::Error>(())
    })
    .context("urgent")?;
    whole(&pair.server, &pair.client, pattern, down).context("answer")
}

/// Receives to the FIN; gives how much it was, and where the urgent bytes were.
fn marked(stream: &TcpStream, pattern: &Pattern) -> Result<(u64, Vec<u64>)> {
    let (mut at, mut marks) = (0, vec![]);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // Before each look: a read that slept could return the urgent byte itself.
        ensure!(
            await_event(stream, PollFlags::POLLIN, LIMIT)?,
            "nothing comes"
        );
        if at_urgent_mark(stream.as_fd())? && marks.last() != Some(&at) {
            marks.push(at);
        }
        match read(stream, &mut buffer)? {
            0 => return Ok((at, marks)),
            length => {
                pattern.verify(at, &buffer[..length])?;
                at += length as u64;
            }
        }
    }
}

/// Makes connections of one kind, one after the other, until it is over; gives how many.
fn churn(course: Course, stage: &World, family: Family, over: &AtomicBool) -> Result<usize> {
    let listener = stage.listen(family)?;
    sockopt::set_fast_open(listener.as_fd(), 16)?;
    let mut rng = Rng::new(course as u64);
    let mut count = 0;
    while !over.load(Relaxed) {
        course
            .run(stage, &listener, &mut rng)
            .with_context(|| format!("{course:?} {count}"))?;
        count += 1;
    }
    Ok(count)
}

#[rstest]
fn connections_that_begin_and_end_meanwhile_are_whole(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] reloads: bool,
) -> Result<()> {
    require!(root);
    let config = match via {
        Via::Early => World::early_config(),
        Via::Pepd | Via::Routing => World::config(),
    };
    let config = config
        .replacen("[leg.lan]", "[leg.lan]\nfast_open = true", 1)
        .replacen("[leg.wan]", "[leg.wan]\nfast_open = true", 1);
    let world = World::standard()?;
    for host in [world.client(), world.hb(), world.server()] {
        // 1: as a client, 2: as a server (ip-sysctl.rst).
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    let mut stage = Stage::in_world(world, via, PEPD, &config)?;
    let over = AtomicBool::new(false);
    let Stage { world, pepd, .. } = &mut stage;
    let pepd = pepd.as_mut().context("no daemon")?;
    let (world, over) = (&*world, &over);
    thread::scope(|scope| {
        let courses = Course::ALL.map(|course| {
            scope.spawn(move || {
                let made = churn(course, world, family, over);
                // The others need not go on.
                over.fetch_or(made.is_err(), Relaxed);
                made
            })
        });
        let mut rng = Rng::new(7);
        let mut died = Ok(());
        for death in 0..DEATHS {
            if died.is_err() || over.load(Relaxed) {
                break;
            }
            thread::park_timeout(Duration::from_millis(rng.between(0, 200)));
            if reloads {
                pepd.signal(Signal::SIGHUP)?;
                thread::park_timeout(Duration::from_millis(rng.between(0, 20)));
            }
            died = pepd
                .dies(Signal::SIGKILL)
                .with_context(|| format!("death {death}"));
        }
        over.store(true, Relaxed);
        for (course, made) in Course::ALL.iter().zip(courses) {
            let made = made.join().unwrap()?;
            println!("{course:?}: {made}");
            ensure!(made > 0, "{course:?}: none");
        }
        died
    })?;
    stage.finish()
}
