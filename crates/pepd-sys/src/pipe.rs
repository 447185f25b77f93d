//! Pipes and splice(2): bytes go from one socket to another without a copy through user space.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::syscall::{check, check_len};

/// A pipe whose ends never block.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    inode: u64,
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
        let capacity = granted.or_else(|_| size(&write))?;
        let inode = inode(&write)?;
        Ok(Self {
            read,
            write,
            capacity: usize::try_from(capacity).unwrap_or(0),
            inode,
        })
    }

    /// Takes both ends of a pipe that is there, with what is in it.
    ///
    /// # Errors
    /// EBADF where they are not the two ends of one pipe.
    pub fn adopt(read: OwnedFd, write: OwnedFd) -> io::Result<Self> {
        let (of_read, of_write) = (inode(&read)?, inode(&write)?);
        let ends = [(&read, libc::O_RDONLY), (&write, libc::O_WRONLY)];
        for (fd, access) in ends {
            // SAFETY: F_GETFL takes no argument.
            let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
            if of_read != of_write || flags & libc::O_ACCMODE != access {
                return Err(io::Error::from_raw_os_error(libc::EBADF));
            }
        }
        let capacity = size(&write)?;
        Ok(Self {
            read,
            write,
            capacity: usize::try_from(capacity).unwrap_or(0),
            inode: of_write,
        })
    }

    /// Returns the numbers of both ends' descriptors, that of the reading end first.
    pub fn ends(&self) -> (RawFd, RawFd) {
        (self.read.as_raw_fd(), self.write.as_raw_fd())
    }

    /// Returns the pipe's inode, which no other pipe has while it is there.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the bytes that the pipe holds now (FIONREAD, pipe(7)).
    pub fn held(&self) -> io::Result<usize> {
        let mut held: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int.
        check(unsafe { libc::ioctl(self.read.as_raw_fd(), libc::FIONREAD, &raw mut held) })?;
        Ok(usize::try_from(held).unwrap_or(0))
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

    /// Copies the first bytes that the pipe holds into `buffer`, and leaves them in it. They come by
    /// `scratch` (tee(2)), an empty pipe, which is not to be used again after an error: what is in it
    /// then is not known.
    pub fn peek(&self, scratch: &Self, buffer: &mut [u8]) -> io::Result<usize> {
        let (from, to) = (self.read.as_raw_fd(), scratch.write.as_raw_fd());
        // SAFETY: it touches no memory of ours.
        let len = check_len(unsafe { libc::tee(from, to, buffer.len(), libc::SPLICE_F_NONBLOCK) })?;
        let mut copied = 0;
        while copied < len {
            match scratch.read(&mut buffer[copied..len])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => copied += more,
            }
        }
        Ok(len)
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

fn size(end: &OwnedFd) -> io::Result<libc::c_int> {
    // SAFETY: F_GETPIPE_SZ takes no argument.
    check(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETPIPE_SZ) })
}

fn inode(end: &OwnedFd) -> io::Result<u64> {
    // SAFETY: all zeroes are a `stat`, which the kernel fills in.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes into the structure, which lives until the call has returned.
    check(unsafe { libc::fstat(end.as_raw_fd(), &raw mut stat) })?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(stat.st_ino)
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

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_is_looked_at_stays_in_the_pipe() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (pipe, scratch) = (Pipe::new(65536).unwrap(), Pipe::new(65536).unwrap());
        a.write_all(b"looked at, and left").unwrap();
        assert_eq!(pipe.fill(b.as_fd(), 65536).unwrap(), 19);
        assert_eq!(pipe.held().unwrap(), 19);
        let mut bytes = [0; 9];
        for _ in 0..2 {
            assert_eq!(pipe.peek(&scratch, &mut bytes).unwrap(), 9);
            assert_eq!(&bytes, b"looked at");
        }
        assert_eq!((pipe.held().unwrap(), scratch.held().unwrap()), (19, 0));
        assert_eq!(pipe.read(&mut bytes).unwrap(), 9);
        assert_eq!(pipe.held().unwrap(), 10);
        assert_ne!(pipe.inode(), scratch.inode());
        let Pipe { read, .. } = pipe;
        let Pipe { write, .. } = scratch;
        assert_eq!(
            Pipe::adopt(read, write).unwrap_err().raw_os_error(),
            Some(libc::EBADF),
            "of two pipes"
        );
    }
}
