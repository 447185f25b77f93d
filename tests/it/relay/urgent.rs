//! Urgent data (RFC 9293 section 3.8.5; tcp(7)): the byte at its place, the stream whole.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::Result;
use nix::poll::PollFlags;
use nix::sys::socket::{MsgFlags, recv};
use pepd_sys::stream::at_urgent_mark;
use pepd_testbed::traffic::{Pair, Pattern, Rng, await_event, read, receive_exactly, send};
use pepd_testbed::{Family, Stage, Via, require};
use rstest::rstest;
use socket2::SockRef;

use crate::harness::{LIMIT, PEPD};

/// What a reader that takes urgent bytes in line got: the stream, and the places of marks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Inline {
    stream: Vec<u8>,
    marks: Vec<usize>,
}

#[rstest]
fn an_urgent_byte_arrives_as_urgent_at_its_place(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(0, 1, 1000, 300_000)] before: usize,
    #[values(0, 1, 200_000)] after: usize,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    for swapped in [false, true] {
        let pair = world.pair(family)?;
        let Pair {
            client: sender,
            server: receiver,
        } = if swapped { pair.swapped() } else { pair };
        SockRef::from(&receiver).set_out_of_band_inline(true)?;
        let reader = std::thread::spawn(move || read_inline(&receiver));
        let mut expected = random(before);
        write_all(&sender, &expected)?;
        SockRef::from(&sender).send_out_of_band(b"!")?;
        expected.push(b'!');
        let rest = random(after);
        write_all(&sender, &rest)?;
        expected.extend(rest);
        sender.shutdown(Shutdown::Write)?;
        let got = reader.join().unwrap()?;
        assert!(
            got.stream == expected,
            "{} bytes of {}",
            got.stream.len(),
            expected.len()
        );
        assert_eq!(got.marks, [before]);
    }
    stage.finish()
}

/// The classic use: the receiver takes the byte out of line, by MSG_OOB, on POLLPRI, and the
/// connection goes on both ways.
#[rstest]
fn an_urgent_byte_is_read_out_of_band_and_the_stream_goes_on(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let Pair { client, server } = world.pair(family)?;
    let pattern = Pattern::new(7);
    for round in 0..20_u8 {
        let at = u64::from(round) * 5000;
        send(&client, &pattern, at, 2500)?;
        SockRef::from(&client).send_out_of_band(&[round])?;
        assert!(
            await_event(&server, PollFlags::POLLPRI, LIMIT)?,
            "no POLLPRI in {round}"
        );
        receive_exactly(&server, &pattern, at, 2500)?;
        assert_eq!(take_urgent(&server)?, round);
        send(&client, &pattern, at + 2500, 2500)?;
        receive_exactly(&server, &pattern, at + 2500, 2500)?;
        send(&server, &pattern, at, 5000)?;
        receive_exactly(&client, &pattern, at, 5000)?;
    }
    stage.finish()
}

/// Nothing but one urgent byte, with the connection left open.
#[rstest]
fn an_urgent_byte_alone_is_delivered_at_once(
    #[values(Via::Routing, Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(via, PEPD)?;
    let world = &stage.world;
    let Pair { client, server } = world.pair(family)?;
    for (from, to, byte) in [
        (&client, &server, 1),
        (&server, &client, 2),
        (&client, &server, 3),
    ] {
        SockRef::from(from).send_out_of_band(&[byte])?;
        assert!(await_event(to, PollFlags::POLLPRI, LIMIT)?, "no POLLPRI");
        assert_eq!(take_urgent(to)?, byte);
    }
    stage.finish()
}

/// Receives the urgent byte, which the kernel may announce before it has it: EAGAIN then
/// (tcp_recv_urg).
fn take_urgent(stream: &TcpStream) -> Result<u8> {
    let mut taken = None;
    pepd_testbed::wait_until(LIMIT, "the urgent byte itself", || {
        let mut byte = [0];
        let got = recv(
            stream.as_raw_fd(),
            &mut byte,
            MsgFlags::MSG_OOB | MsgFlags::MSG_DONTWAIT,
        );
        taken = got.ok().filter(|&length| length == 1).map(|_| byte[0]);
        taken.is_some()
    })?;
    Ok(taken.unwrap())
}

/// Waits before each look at the mark: a read that slept could return the urgent byte itself,
/// and the place would be missed.
fn read_inline(stream: &TcpStream) -> Result<Inline> {
    let mut got = Inline::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        anyhow::ensure!(
            await_event(stream, PollFlags::POLLIN, LIMIT)?,
            "nothing comes"
        );
        if at_urgent_mark(stream.as_fd())? && got.marks.last() != Some(&got.stream.len()) {
            got.marks.push(got.stream.len());
        }
        match read(stream, &mut buffer)? {
            0 => return Ok(got),
            length => got.stream.extend_from_slice(&buffer[..length]),
        }
    }
}

fn write_all(mut stream: &TcpStream, bytes: &[u8]) -> Result<()> {
    Ok(std::io::Write::write_all(&mut stream, bytes)?)
}

/// Bytes among which `!` does not occur by a pattern of ours.
fn random(length: usize) -> Vec<u8> {
    let mut rng = Rng::new(length as u64);
    (0..length)
        .map(|_| rng.bits().to_le_bytes()[0] | 0x80)
        .collect()
}
