//! How connections end: half-close, RST, and what may not be lost by either.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use pepd_sys::stream::unacknowledged;
use pepd_testbed::traffic::{End, Pair, Pattern, connect, kind, receive, receive_exactly, send};
use pepd_testbed::{Family, Stage, Via, World, require, wait_until};
use rstest::rstest;
use socket2::SockRef;

use crate::harness::{LIMIT, PEPD};

/// An end is passed on at once; only a proxy that waits for something that does not come, and
/// gives up in the end (after a minute), takes longer than this.
const PROMPT: Duration = Duration::from_secs(40);

/// The end that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Client,
    Server,
}

pub(super) fn open(stage: &Stage, family: Family, by: By) -> Result<Pair> {
    let world = &stage.world;
    let pair = world.pair(family)?;
    for end in [&pair.client, &pair.server] {
        end.set_read_timeout(Some(PROMPT))?;
    }
    Ok(if by == By::Client {
        pair
    } else {
        pair.swapped()
    })
}

#[rstest]
fn after_a_half_close_the_other_direction_lives_on(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let Pair {
        client: first,
        server: second,
    } = open(&stage, family, by)?;
    let (question, answer) = (Pattern::new(1), Pattern::new(2));
    send(&first, &question, 0, 100_000)?;
    first.shutdown(Shutdown::Write)?;
    assert_eq!(receive(&second, &question, 0)?, (100_000, End::Fin));
    // More than any buffer on the way holds, so it is read while it is written.
    let reader = std::thread::spawn(move || receive(&first, &Pattern::new(2), 0));
    send(&second, &answer, 0, 20_000_000)?;
    drop(second);
    assert_eq!(reader.join().unwrap()?, (20_000_000, End::Fin));
    stage.finish()
}

#[rstest]
fn a_reset_arrives_as_reset_after_what_came_before_it(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let Pair {
        client: first,
        server: second,
    } = open(&stage, family, by)?;
    let pattern = Pattern::new(3);
    send(&first, &pattern, 0, 50_000)?;
    receive_exactly(&second, &pattern, 0, 50_000)?;
    send(&second, &pattern, 0, 10)?;
    receive_exactly(&first, &pattern, 0, 10)?;
    reset(first)?;
    assert_eq!(receive(&second, &pattern, 50_000)?, (0, End::RESET));
    stage.finish()
}

/// The proxy has to deliver the bytes that it has acknowledged, even when a RST follows them.
///
/// Only the proxy is tested: nothing else acknowledges more than the receiver has room for.
#[rstest]
fn a_reset_does_not_overtake_what_was_acknowledged(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let Pair {
        client: first,
        server: second,
    } = open(&stage, family, by)?;
    let pattern = Pattern::new(4);
    send(&first, &pattern, 0, 300_000)?;
    wait_until(
        LIMIT,
        "all is acknowledged while the receiver reads nothing",
        || unacknowledged(first.as_fd()).is_ok_and(|bytes| bytes == 0),
    )?;
    reset(first)?;
    assert_eq!(receive(&second, &pattern, 0)?, (300_000, End::RESET));
    stage.finish()
}

/// A server that answers and closes while the request is still on its way to it: its kernel
/// meets the request with a RST and throws away what it had not sent. The client gets all of
/// the answer, or an error.
///
/// The order of data, RST and writes within the proxy is a matter of microseconds, so there
/// are many of them.
#[rstest]
fn an_answer_cut_short_never_ends_cleanly(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    const ANSWER: u64 = 154_287;
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let (question, answer) = (Pattern::new(8), Pattern::new(9));
    let (mut whole, mut cut) = (0, 0);
    for round in 0..400 {
        let Pair { client, server } = world.pair(family)?;
        let serving = std::thread::spawn(move || {
            // It may be that the RST is faster than the answer.
            let _ = send(&server, &Pattern::new(9), 0, ANSWER);
        });
        let told = send(&client, &question, 0, 83_083).is_err();
        let _ = client.shutdown(Shutdown::Write);
        // A writer that was told of the RST takes it from the reader (`sk_err`).
        match receive(&client, &answer, 0)? {
            (ANSWER, _) => whole += 1,
            (bytes, end) => {
                assert!(
                    told || end != End::Fin,
                    "round {round}: a clean end after {bytes} bytes"
                );
                cut += 1;
            }
        }
        serving.join().unwrap();
    }
    println!("{whole} answers whole, {cut} cut");
    stage.finish()
}

/// An end that closes with bytes unread sends a RST, which tells the other that they were lost.
#[rstest]
fn bytes_unread_at_a_close_become_a_reset(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let Pair {
        client: first,
        server: second,
    } = open(&stage, family, by)?;
    let pattern = Pattern::new(5);
    send(&second, &pattern, 0, 1000)?;
    wait_until(LIMIT, "1000 bytes wait unread", || waiting(&first) == 1000)?;
    drop(first);
    assert_eq!(receive(&second, &pattern, 0)?, (0, End::RESET));
    stage.finish()
}

/// A RST to a direction that has had its FIN ends the other; it never turns the FIN into an
/// error.
#[rstest]
fn a_reset_after_a_fin_does_not_undo_the_fin(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(By::Client, By::Server)] by: By,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let Pair {
        client: first,
        server: mut second,
    } = open(&stage, family, by)?;
    let pattern = Pattern::new(6);
    send(&first, &pattern, 0, 30_000)?;
    first.shutdown(Shutdown::Write)?;
    assert_eq!(receive(&second, &pattern, 0)?, (30_000, End::Fin));
    reset(first)?;
    // The writer learns of it: a write fails in the end instead of going nowhere for ever.
    wait_until(LIMIT, "a write fails after the reset", || {
        second.write(&[0; 1000]).is_err()
    })?;
    stage.finish()
}

#[rstest]
fn a_refused_connection_is_an_error_to_the_client(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let closed = SocketAddr::new(World::server_address(family), 9);
    // With an early handshake the connection is established first, and the RST follows: before
    // `connect` has returned, or after.
    match connect(stage.world.client(), closed) {
        Ok(stream) if via == Via::Early => {
            assert_eq!(receive(&stream, &Pattern::new(0), 0)?, (0, End::RESET));
        }
        Ok(_) => panic!("a closed port looks open"),
        Err(error) => assert!(
            match kind(&error) {
                Some(ErrorKind::ConnectionRefused) => true,
                Some(ErrorKind::ConnectionReset) => via == Via::Early,
                _ => false,
            },
            "{error:#}"
        ),
    }
    stage.world.pair(family)?;
    stage.finish()
}

/// Closes by RST (`SO_LINGER` of zero; tcp(7)).
pub(crate) fn reset(stream: std::net::TcpStream) -> Result<()> {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    drop(stream);
    Ok(())
}

/// Returns how many bytes a receiver's kernel holds that nobody has read.
fn waiting(stream: &std::net::TcpStream) -> usize {
    let mut buffer = vec![0; 1 << 20];
    stream.peek(&mut buffer).unwrap_or(0)
}
