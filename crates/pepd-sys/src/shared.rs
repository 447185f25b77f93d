//! Memory that outlives the process that writes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::syscall::check;

/// Words of memory that a process has together with those that it makes, and that a later program
/// can have again by the descriptor (memfd_create(2), MAP_SHARED).
///
/// It takes memory only where something has been written. Nobody can make it shorter, and so nobody
/// who has the descriptor can have a reader of it killed (SIGBUS). A clone is of the same memory.
#[derive(Clone, Debug)]
pub struct SharedWords {
    /// Never closed: processes that have one table of descriptors have it together.
    fd: &'static OwnedFd,
    words: &'static [AtomicU64],
}

impl SharedWords {
    /// Makes `count` words, all of them zero. They stay for as long as the process does.
    ///
    /// # Errors
    /// As memfd_create(2), ftruncate(2) and mmap(2).
    pub fn new(count: usize) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero.
        let fd = check(unsafe { libc::memfd_create(c"pepd".as_ptr(), flags) })?;
        // SAFETY: memfd_create succeeded, so the descriptor is open and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes = count
            .checked_mul(size_of::<AtomicU64>())
            .and_then(|bytes| libc::off_t::try_from(bytes).ok())
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: it touches no memory of ours.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes) })?;
        Self::map(fd)
    }

    /// Maps what another program has made.
    ///
    /// # Errors
    /// As mmap(2); EINVAL where the descriptor is of no such memory.
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: it takes an int and touches no memory of ours.
        let sealed = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) });
        // SAFETY: it takes nothing.
        let has = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        if has & seals != seals {
            return Err(sealed.err().unwrap_or(io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: all zeroes are a `stat`, which the kernel fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes into the structure, which lives until the call has returned.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
        let bytes = usize::try_from(stat.st_size).unwrap_or(0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a place that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping begins at a page, has room for as many words as its length holds, is
        // never unmapped, and its file cannot become shorter (F_SEAL_SHRINK). Whatever bytes are in
        // it are values of an AtomicU64, and other processes change them by atomic stores of whole
        // words, or spoil a value and nothing else.
        let words = unsafe {
            std::slice::from_raw_parts(start.cast::<AtomicU64>(), bytes / size_of::<AtomicU64>())
        };
        Ok(Self {
            fd: Box::leak(Box::new(fd)),
            words,
        })
    }

    /// Returns the words.
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_is_written_is_there_for_whoever_maps_it_again() {
        let shared = SharedWords::new(1000).unwrap();
        assert_eq!(shared.words().len(), 1000);
        assert!(shared.words().iter().all(|word| word.load(Relaxed) == 0));
        shared.words()[999].store(7, Relaxed);
        let again = SharedWords::map(shared.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(again.words()[999].load(Relaxed), 7);
        again.words()[0].store(8, Relaxed);
        assert_eq!(shared.words()[0].load(Relaxed), 8);
        // SAFETY: it touches no memory of ours.
        let shortened = check(unsafe { libc::ftruncate(shared.as_fd().as_raw_fd(), 8) });
        assert_eq!(shortened.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn a_file_that_could_become_shorter_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        SharedWords::map(file.into()).unwrap_err();
    }
}
