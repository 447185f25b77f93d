//! Streams that are kept full, and what arrives of them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::World;
use pepd_testbed::traffic::{Pair, Pattern, accept, connect};

/// Does something while all clients send as much as goes; what arrives is for it to [`watch`].
pub fn while_filled<T>(pairs: &[Pair], work: impl FnOnce() -> Result<T>) -> Result<T> {
    for pair in pairs {
        pair.server.set_nonblocking(true)?;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let senders: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| fill(&pair.client, &over)))
            .collect();
        let done = work();
        over.store(true, Relaxed);
        for sender in senders {
            sender.join().ok().context("a sender panicked")??;
        }
        done
    })
}

/// The same, and what arrives is read by the way.
pub fn while_busy<T>(pairs: &[Pair], work: impl FnOnce() -> Result<T>) -> Result<T> {
    while_filled(pairs, || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| -> Result<()> {
                while !over.load(Relaxed) {
                    watch(pairs, Duration::from_millis(100))?;
                }
                Ok(())
            });
            let done = work();
            over.store(true, Relaxed);
            reader.join().ok().context("the reader panicked")??;
            done
        })
    })
}

/// Sends until it is over.
pub fn fill(mut stream: &TcpStream, over: &AtomicBool) -> Result<()> {
    let pattern = Pattern::new(1);
    let mut sent = 0;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    while !over.load(Relaxed) {
        match stream.write(pattern.piece(sent, 16 << 10)) {
            Ok(some) => sent += some as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads what has come so far, and gives how much.
pub fn take(mut stream: &TcpStream) -> Result<usize> {
    let mut buffer = [0; 64 << 10];
    let mut taken = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => anyhow::bail!("the connection has ended"),
            Ok(some) => taken += some,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads from all for so long; gives when each had its first bytes, and how many there were in all.
pub fn watch(pairs: &[Pair], time: Duration) -> Result<(Vec<Option<Duration>>, usize)> {
    let begun = Instant::now();
    let mut first = vec![None; pairs.len()];
    let mut all = 0;
    while begun.elapsed() < time {
        for (pair, first) in pairs.iter().zip(&mut first) {
            let taken = take(&pair.server)?;
            all += taken;
            if taken > 0 && first.is_none() {
                *first = Some(begun.elapsed());
            }
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    Ok((first, all))
}

/// A transfer: the client asks with a byte, and has so many from the server, which then closes.
pub fn download(world: &World, listener: &TcpListener, bytes: usize) -> Result<()> {
    let to = listener.local_addr()?;
    let mut client = connect(world.client(), to)?;
    let (mut server, _) = accept(listener)?;
    client.write_all(b"?")?;
    server.read_exact(&mut [0])?;
    server.write_all(&vec![b'.'; bytes])?;
    drop(server);
    read_all(&mut client, bytes)
}

fn read_all(client: &mut TcpStream, bytes: usize) -> Result<()> {
    let mut all = Vec::new();
    client.read_to_end(&mut all)?;
    ensure!(all.len() == bytes, "{} of {bytes} bytes", all.len());
    Ok(())
}
