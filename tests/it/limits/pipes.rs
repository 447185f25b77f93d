//! Pipes, of which a user has few of full size.

use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Result, ensure};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use pepd_testbed::{Family, Pepd, World, established, require, wait_until};
use rstest::rstest;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use crate::harness::{LIMIT, PEPD};

/// Users that nobody else is, one for each case: the kernel counts pipes by user.
const USERS: [u32; 2] = [54_324, 54_325];

/// What the daemon asks for.
const FULL_SIZE: i32 = 256 * 1024;

/// The most that anybody may ask for by default (pipe-max-size).
const LARGEST: i32 = 1024 * 1024;

/// A daemon's user whose other programs have all the pipes that the kernel gives in full size: the
/// next ones hold so little that bytes are copied instead, and it says so. Once there is room, they
/// go through pipes again.
#[rstest]
fn where_pipes_are_small_bytes_are_copied(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let user = USERS[usize::from(family == Family::V6)];
    let soft: u32 = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")?
        .trim()
        .parse()?;
    let world = World::standard()?;
    let config = World::config().replacen(
        "[node]",
        &format!("[node]\nworkers = 1\nuser = \"{user}\""),
        1,
    );
    // Without that limit there are no small ones.
    let taken = if soft > 0 {
        take_all(user)?
    } else {
        Vec::new()
    };
    let pepd = Pepd::start(PEPD, world.hb(), &config)?;
    let pid = pepd.daemon()?;
    let pair = world.pair(family)?;
    pair.exchange(3_000_000)?;
    ensure!(established(world.hb())? == 2, "it is split");
    if soft > 0 {
        assert_eq!(full_size(pid)?, 0, "the test did not test small ones");
        let said = "fs.pipe-user-pages-soft";
        assert!(pepd.log().contains(said), "{}", pepd.log());
    }
    drop(taken);
    wait_until(LIMIT, "pipes of full size", || {
        pair.exchange(100_000).unwrap();
        full_size(pid).unwrap() > 0
    })?;
    pair.exchange(3_000_000)?;
    drop(pair);
    let (status, log) = pepd.stop()?;
    ensure!(status.success(), "{log}");
    Ok(())
}

/// Opens pipes as another user until the kernel gives only small ones.
fn take_all(user: u32) -> Result<Vec<(PipeReader, PipeWriter)>> {
    let take = move || -> Result<_> {
        // This thread's alone, and without capabilities from then on.
        let gid = Gid::from_raw(user);
        set_thread_res_gid(gid, gid, gid)?;
        let uid = Uid::from_raw(user);
        set_thread_res_uid(uid, uid, uid)?;
        let mut taken = Vec::new();
        loop {
            let (read, write) = std::io::pipe()?;
            let is_small = fcntl(&write, FcntlArg::F_GETPIPE_SZ)? < 64 * 1024;
            // Where it may not be larger it stays as it is.
            let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(LARGEST));
            taken.push((read, write));
            if is_small {
                return Ok(taken);
            }
        }
    };
    std::thread::spawn(take).join().unwrap()
}

/// Counts the ends of a process's pipes that have the size that the relay asks for.
fn full_size(pid: impl std::fmt::Display) -> Result<usize> {
    let has_it = |path: std::path::PathBuf| -> Option<bool> {
        let is_pipe = fs::read_link(&path)
            .ok()?
            .to_string_lossy()
            .starts_with("pipe:");
        let open = |path| -> std::io::Result<File> {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
            options.open(path)
        };
        let size = || fcntl(open(&path).ok()?, FcntlArg::F_GETPIPE_SZ).ok();
        Some(is_pipe && size() == Some(FULL_SIZE))
    };
    let ends = fs::read_dir(format!("/proc/{pid}/fd"))?;
    Ok(ends
        .filter_map(|end| has_it(end.ok()?.path()))
        .filter(|has_it| *has_it)
        .count())
}
