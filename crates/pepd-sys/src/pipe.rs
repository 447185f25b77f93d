//! Pipes and splice(2): bytes go from one socket to another without a copy through user space.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::syscall::{check, check_len};

/// A pipe whose ends never block.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    /// Opens a pipe and asks for `capacity` bytes.
    ///
    /// The kernel may grant less (`pipe-user-pages-soft`, pipe(7)): [`Pipe::capacity`] tells
    /// what there is. Being refused the size is no error; having no descriptor is (EMFILE).
    pub fn new(capacity: usize) -> io::Result<Self> {
        let mut fds = [0; 2];
        // SAFETY: pipe2 writes two descriptors into the array it is given, which has room
        // for two. No safe wrapper is used because std's pipes are blocking.
        check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
        // SAFETY: pipe2 succeeded, so both are open and nobody else has them.
        let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        let wanted = libc::c_int::try_from(capacity).unwrap_or(libc::c_int::MAX);
        // SAFETY: F_SETPIPE_SZ takes an int and touches no memory of ours.
        let granted = check(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, wanted) });
        // SAFETY: F_GETPIPE_SZ takes no argument.
        let granted = granted
            .or_else(|_| check(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_GETPIPE_SZ) }))?;
        Ok(Self {
            read,
            write,
            capacity: usize::try_from(granted).unwrap_or(0),
        })
    }

    /// Returns what the kernel lets the pipe hold, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Moves up to `len` bytes from `source` into the pipe; 0 is the end of the stream.
    ///
    /// EAGAIN means that the source is empty, or at the urgent mark, *or* that the pipe is
    /// full: call it with an empty pipe, and it means the source.
    pub fn fill(&self, source: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        splice(source.as_raw_fd(), self.write.as_raw_fd(), len)
    }

    /// Moves up to `len` bytes, which the pipe must hold, from the pipe into `sink`.
    ///
    /// EAGAIN means that the sink has no room.
    pub fn drain(&self, sink: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
        splice(self.read.as_raw_fd(), sink.as_raw_fd(), len)
    }

    /// Copies bytes that the pipe holds into `buffer`, and takes them out of it.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into the buffer. std reads from a
        // file that it owns, and not from a borrowed descriptor.
        check_len(unsafe {
            libc::read(
                self.read.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        })
    }
}

/// Moves bytes without SPLICE_F_MORE: with it, the end of each small write waits some 200 ms for
/// more.
fn splice(from: libc::c_int, to: libc::c_int, len: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: both offsets are null, so the call touches no memory of ours; the callers
    // borrow the descriptors, so they are open.
    check_len(unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), len, flags) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn bytes_pass_in_order_and_the_end_is_seen() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (c, mut d) = UnixStream::pair().unwrap();
        let pipe = Pipe::new(65536).unwrap();
        a.write_all(b"through the pipe").unwrap();
        drop(a);
        assert_eq!(pipe.fill(b.as_fd(), 65536).unwrap(), 16);
        assert_eq!(pipe.drain(c.as_fd(), 16).unwrap(), 16);
        assert_eq!(pipe.fill(b.as_fd(), 65536).unwrap(), 0);
        drop(c);
        let mut got = String::new();
        d.read_to_string(&mut got).unwrap();
        assert_eq!(got, "through the pipe");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn an_empty_source_would_block() {
        let (_a, b) = UnixStream::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        let pipe = Pipe::new(65536).unwrap();
        let error = pipe.fill(b.as_fd(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
