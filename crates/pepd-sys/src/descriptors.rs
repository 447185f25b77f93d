//! The descriptors that a process has found open when it began.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::syscall::check;

/// Descriptors beyond standard error that another process has left in the table that this one has
/// from it ([`clone_sharing_descriptors`](crate::process::clone_sharing_descriptors)). What nobody
/// has taken is closed when this is dropped.
#[derive(Debug)]
pub struct Left {
    /// Whether there is such a descriptor, by its number.
    open: Vec<bool>,
}

/// The first number after standard error.
const FIRST: usize = 3;

impl Left {
    /// Finds all of them, but for those in `kept`, which this process's own values have.
    ///
    /// To be called before the process has opened anything: what is open is nobody's in it but
    /// those. A second call finds, and closes, what others have by then.
    ///
    /// # Errors
    /// If the kernel does not say how many there may be.
    pub fn find(kept: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let mut open: Vec<bool> = (0..table_size()?)
            .map(|fd| fd >= FIRST && is_open(fd))
            .collect();
        for kept in kept {
            let number = usize::try_from(kept.as_raw_fd()).unwrap_or(usize::MAX);
            if let Some(open) = open.get_mut(number) {
                *open = false;
            }
        }
        Ok(Self { open })
    }

    /// Returns the numbers of those that nobody has taken, the lowest first.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        (0..)
            .zip(&self.open)
            .filter_map(|(fd, open)| open.then_some(fd))
    }

    /// Returns one of them, to look at.
    pub fn get(&self, fd: RawFd) -> Option<BorrowedFd<'_>> {
        let is_there = usize::try_from(fd).is_ok_and(|fd| self.open.get(fd) == Some(&true));
        // SAFETY: it was open when they were found, is nobody else's, and stays open for as long as
        // it is among them.
        is_there.then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Closes those that nobody has taken, but for what waits for events (epoll(7)). To close that takes
    /// a while for each of thousands of sockets, and is left to when this is dropped.
    pub fn close_but_for_epoll(&mut self) {
        let left: Vec<RawFd> = self.numbers().collect();
        for fd in left {
            if !self.get(fd).is_some_and(is_epoll) {
                drop(self.take(fd));
            }
        }
    }

    /// Leaves those that nobody has taken open.
    pub fn leave(mut self) {
        self.open.clear();
    }

    /// Takes one of them, once.
    pub fn take(&mut self, fd: RawFd) -> Option<OwnedFd> {
        let open = self.open.get_mut(usize::try_from(fd).ok()?)?;
        // SAFETY: it was open when they were found, is nobody else's, and is no longer among them.
        std::mem::take(open).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let left: Vec<RawFd> = self.numbers().collect();
        for fd in left {
            drop(self.take(fd));
        }
    }
}

/// Has every descriptor beyond standard error closed when this process executes a program
/// (CLOSE_RANGE_CLOEXEC, close_range(2)); before Linux 5.11 one by one.
///
/// # Errors
/// As close_range(2) or fcntl(2).
pub fn close_all_on_exec() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    let (first, last) = (FIRST as libc::c_uint, libc::c_uint::MAX);
    // SAFETY: it marks descriptors, closes none, and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) };
    match check(libc::c_int::try_from(result).unwrap_or(-1)) {
        Ok(_) => Ok(()),
        Err(_) => mark_all(libc::FD_CLOEXEC),
    }
}

/// Has every descriptor beyond standard error stay open when this process executes a program.
///
/// # Errors
/// As fcntl(2).
pub fn keep_all_on_exec() -> io::Result<()> {
    mark_all(0)
}

fn mark_all(flags: libc::c_int) -> io::Result<()> {
    for fd in (FIRST..table_size()?).filter(|fd| is_open(*fd)) {
        let fd = RawFd::try_from(fd).unwrap_or(-1);
        // SAFETY: F_SETFD takes an int and touches no memory of ours.
        check(unsafe { libc::fcntl(fd, libc::F_SETFD, flags) })?;
    }
    Ok(())
}

/// Gives how many descriptors the table has room for (`FDSize` of proc_pid_status(5)).
fn table_size() -> io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.and_then(|size| size.trim().parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn is_epoll(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeroes is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the kernel writes one `stat`, which is there for it.
    let asked = check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) });
    // What is in no file system has no type; only of that the name is asked, which costs more.
    if asked.is_err() || stat.st_mode & libc::S_IFMT != 0 {
        return false;
    }
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventpoll]")
}

fn is_open(fd: usize) -> bool {
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    // SAFETY: F_GETFD takes nothing and touches no memory of ours; a number that is no descriptor
    // is refused.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) }).is_ok()
}
