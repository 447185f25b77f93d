//! A process made by another one with which it shares its table of descriptors, and signals that
//! are waited for.

use std::io;
use std::ptr;
use std::time::Duration;

use crate::clock::timespec;
use crate::syscall::check;

/// Which of the two processes this is, after [`clone_sharing_descriptors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that has made the other, with the other's process id.
    Parent(i32),
    /// The new one.
    Child,
}

/// Makes another process as fork(2) does, but for the table of descriptors, which both have together
/// (CLONE_FILES, clone(2)): what the child opens stays open when the child ends, however it ends, for
/// as long as this process lives.
///
/// A value that owns a descriptor is there twice afterwards, once in each process, and the descriptor
/// once: where one of them closes it, the other may not.
///
/// The signal at its end is SIGCHLD. It has this process's mask of signals.
///
/// # Errors
/// As clone(2); EBUSY where there is a second thread, which the new process would not have, but for
/// the locks that it holds.
pub fn clone_sharing_descriptors() -> io::Result<Side> {
    if threads()? != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let mut flags = (libc::CLONE_FILES | libc::SIGCHLD) as libc::c_ulong;
    let tid = tid_address();
    if !tid.is_null() {
        // Where the C library keeps the thread's number, as its fork does (sysdeps/nptl/_Fork.c,
        // glibc): what it is told of itself is right.
        flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as libc::c_ulong;
    }
    let null = ptr::null_mut::<libc::c_void>();
    // SAFETY: without CLONE_VM the child has a copy of all memory, its stack included, on which it
    // returns from here as fork's does; there is no other thread, so no lock is held by one that the
    // copy lacks. The kernel writes one c_int to `tid`, in the child's memory, which is where it
    // says that it keeps it. No safe wrapper has these flags.
    let pid = unsafe {
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
            libc::syscall(libc::SYS_clone, flags, null, null, tid, null)
        } else {
            // CONFIG_CLONE_BACKWARDS: the last two change places.
            libc::syscall(libc::SYS_clone, flags, null, null, null, tid)
        }
    };
    match check(libc::c_int::try_from(pid).unwrap_or(-1))? {
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid)),
    }
}

/// Gives where the kernel clears the thread's number at its end (PR_GET_TID_ADDRESS), which is where
/// the C library keeps it; null on kernels without checkpoint and restore, which do not say.
fn tid_address() -> *mut libc::c_int {
    let mut address: *mut libc::c_int = ptr::null_mut();
    // SAFETY: the kernel writes one pointer.
    let result = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut address) };
    if result == 0 {
        address
    } else {
        ptr::null_mut()
    }
}

/// Counts the threads of this process.
fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Waits for one of `signals`, which must be blocked (sigtimedwait(2)); none where none has come
/// within `limit`, or another one interrupts.
///
/// # Errors
/// As sigtimedwait(2), but for EAGAIN and EINTR.
pub fn wait_for_signal(signals: &[i32], limit: Duration) -> io::Result<Option<i32>> {
    // SAFETY: all zeroes are a sigset_t, and sigemptyset makes it an empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives; so does it below.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: as above; a number that is no signal is refused.
        check(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
    }
    let limit = timespec(limit);
    // SAFETY: the kernel reads the set and the time, and writes nothing where it is given null.
    match check(unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const limit) }) {
        Ok(signal) => Ok(Some(signal)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(error),
        },
    }
}
