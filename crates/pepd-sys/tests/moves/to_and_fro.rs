//! A connection that is busy both ways moves again and again.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Result, ensure};
use nix::poll::PollFlags;
use pepd_sys::repair::close_silently;
use pepd_sys::stream;
use pepd_testbed::traffic::{End, PATIENCE, Pattern, Rng, await_event, receive, send};
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;

use crate::ground::{BOXES, Ground, Opener, Variation};

const MOVES: usize = 20;

/// What the peer sends at a time.
const PIECE: u64 = 64 * 1024;

/// What this end moves of both directions together before it moves itself, at most.
const BETWEEN: u64 = 3_000_000;

/// What this end has sent and read.
struct Relay {
    out: Pattern,
    back: Pattern,
    sent: u64,
    read: u64,
    ended: bool,
}

impl Relay {
    /// Sends and reads until so much has been moved, or the peer has ended.
    fn go_on(&mut self, mut here: &TcpStream, most: u64) -> Result<()> {
        let until = self.sent + self.read + most;
        let mut buffer = vec![0; 64 * 1024];
        here.set_nonblocking(true)?;
        while self.sent + self.read < until && !self.ended {
            let wrote = match here.write(self.out.piece(self.sent, 32 * 1024)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                other => other?,
            };
            self.sent += wrote as u64;
            let read = match here.read(&mut buffer) {
                Ok(0) => {
                    self.ended = true;
                    0
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                other => other?,
            };
            self.back.verify(self.read, &buffer[..read])?;
            self.read += read as u64;
            if wrote + read == 0 {
                let either = PollFlags::POLLIN | PollFlags::POLLOUT;
                ensure!(await_event(&here, either, PATIENCE)?, "nothing moves");
            }
        }
        here.set_nonblocking(false)?;
        Ok(())
    }
}

#[rstest]
fn a_busy_connection_moves_to_and_fro(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, Variation::Usual)?;
    let pair = ground.connect(Opener::Here)?;
    let (mut here, peer) = (pair.here, pair.peer);
    let mut relay = Relay {
        out: Pattern::new(3),
        back: Pattern::new(4),
        sent: 0,
        read: 0,
        ended: false,
    };
    let (out, back) = (relay.out.clone(), relay.back.clone());
    let over = AtomicBool::new(false);
    let mut rng = Rng::new(5);
    let got = thread::scope(|scope| {
        let got = scope.spawn(|| receive(&peer, &out, 0));
        let sent = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Relaxed) {
                send(&peer, &back, sent, PIECE)?;
                sent += PIECE;
            }
            peer.shutdown(Shutdown::Write)?;
            Ok::<_, anyhow::Error>(sent)
        });
        let mut moved = || {
            for turn in 0..MOVES {
                relay.go_on(&here, rng.between(0, BETWEEN))?;
                let [from, to] = [BOXES[turn % 2], BOXES[(turn + 1) % 2]];
                let snapshot = ground.take(from, &here)?;
                let restored = ground.restore(to, &snapshot)?;
                let before = std::mem::replace(&mut here, ground.switch(to, restored)?);
                close_silently(before.into())?;
            }
            over.store(true, Relaxed);
            relay.go_on(&here, u64::MAX / 2)?;
            here.shutdown(Shutdown::Write)?;
            Ok::<_, anyhow::Error>(())
        };
        let moved = moved();
        over.store(true, Relaxed);
        if moved.is_err() {
            // Nobody waits for ever.
            peer.shutdown(Shutdown::Both)?;
        }
        let (sent, got) = (sent.join().unwrap(), got.join().unwrap());
        moved?;
        Ok::<_, anyhow::Error>((sent?, got?))
    })?;
    let (sent, got) = got;
    ensure!(relay.read == sent, "{} of {sent}", relay.read);
    ensure!(got == (relay.sent, End::Fin), "{got:?} of {}", relay.sent);
    let acknowledged = || stream::unacknowledged(here.as_fd()).unwrap_or(1) == 0;
    wait_until(PATIENCE, "the last acknowledgement", acknowledged)?;
    ground.no_resets()
}
