//! Waiting for what a program writes into a buffer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Map;
use crate::clock::timespec;
use crate::syscall::check;

/// The user's end of a buffer, of which only that something came matters: what it is is thrown away.
#[derive(Debug)]
pub struct Ring {
    map: Map,
    /// How far it has been read, and written, in bytes since ever.
    read: Page,
    written: Page,
}

impl Ring {
    /// Takes hold of a buffer.
    ///
    /// # Errors
    /// If it is a map of another kind, or there is no memory.
    pub fn new(map: Map) -> io::Result<Self> {
        // The kernel has them in pages of their own; see kernel/bpf/ringbuf.c, ringbuf_map_mmap_kern.
        let (first, second) = (0, page_size());
        let read = Page::of(map.as_fd(), first, libc::PROT_READ | libc::PROT_WRITE)?;
        let written = Page::of(map.as_fd(), second, libc::PROT_READ)?;
        Ok(Self { map, read, written })
    }

    /// Waits until something is written, for `longest` at most, and returns whether there was something.
    ///
    /// # Errors
    /// If a signal comes (EINTR), or what is waited for is no buffer.
    pub fn wait(&self, longest: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.map.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let longest = timespec(longest);
        // SAFETY: the kernel reads and writes one entry, and reads the time; there is no mask of signals.
        let ready =
            check(unsafe { libc::ppoll(&raw mut poll, 1, &raw const longest, ptr::null()) })?;
        // The kernel wakes only whoever has read everything. What is being written now has woken already.
        let written = self.written.position().load(Ordering::Acquire);
        self.read.position().store(written, Ordering::Release);
        Ok(ready > 0)
    }
}

/// A page that the kernel and this process share, with a position at its beginning.
#[derive(Debug)]
struct Page(NonNull<AtomicUsize>);

// SAFETY: it is a position that is read and written as a whole, by anybody at any time.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn of(map: BorrowedFd<'_>, offset: usize, protection: libc::c_int) -> io::Result<Self> {
        let offset = offset
            .try_into()
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: a new mapping, wherever there is room: nobody's memory is touched.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                page_size(),
                protection,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                offset,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    fn position(&self) -> &AtomicUsize {
        // SAFETY: the page is mapped until this is dropped, and begins with an `unsigned long` that the
        // kernel accesses as a whole. One that is mapped for reading is only read: see `Ring::wait`.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nobody has a reference to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), page_size()) };
    }
}

fn page_size() -> usize {
    // SAFETY: it takes a number and touches no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
