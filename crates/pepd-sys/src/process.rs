//! A process made by another one with which it shares its table of descriptors, and signals that
//! are waited for.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::ptr;
use std::time::Duration;

use crate::clock::timespec;
use crate::syscall::check;

/// The stack of a process that is made here, in bytes: what main threads usually have. It takes memory
/// as far as it is used.
const STACK: usize = 8 << 20;

/// What of it is at its end for nobody to come to, in bytes: a page, of the largest that there are.
const GUARD: usize = 64 << 10;

/// The exit code of a process that has ended by a panic: that of Rust's own.
const PANICKED: i32 = 101;

/// Has a program begin a session of its own (setsid(2)): in a process group that is its own as well, and with no
/// terminal that it could write to, or put words into.
pub fn in_a_session_of_its_own(program: &mut Command) -> &mut Command {
    // SAFETY: it touches no memory.
    let begin = || check(unsafe { libc::setsid() }).map(drop);
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { program.pre_exec(begin) }
}

/// Makes another process as fork(2) does, but for the table of descriptors, which both have together
/// (CLONE_FILES, clone(2)): what the child opens stays open when the child ends, however it ends, for
/// as long as this process lives. It runs `child` on a stack of its own, and exits with what that
/// returns. Gives its number.
///
/// A value that owns a descriptor is there twice afterwards, once in each process, and the descriptor
/// once: where one of them closes it, the other may not.
///
/// The signal at its end is SIGCHLD. It has this process's mask of signals.
///
/// # Errors
/// As clone(2) and mmap(2); EBUSY where there is a second thread, which the new process would not have,
/// but for the locks that it holds.
pub fn clone_sharing_descriptors<F: FnOnce() -> i32>(child: F) -> io::Result<i32> {
    if threads()? != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let stack = Stack::new(STACK)?;
    let mut child = Some(child);
    let null = ptr::null_mut::<libc::c_void>();
    let (flags, tid) = number_of_its_own();
    // SAFETY: without CLONE_VM the child has a copy of all memory, of `child` and of its stack as well,
    // whatever becomes of them here; there is no other thread, so no lock is held by one that the copy
    // lacks. `run` takes what it is given here, an `Option<F>`. The kernel writes one c_int to `tid`, in
    // the child's memory, which is where it says that the C library keeps it. No safe wrapper has these
    // flags.
    check(unsafe {
        libc::clone(
            run::<F>,
            stack.top(),
            libc::CLONE_FILES | libc::SIGCHLD | flags,
            (&raw mut child).cast(),
            null,
            null,
            tid,
        )
    })
}

/// What the new process does.
extern "C" fn run<F: FnOnce() -> i32>(child: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone_sharing_descriptors` gives a pointer to such a value, which lives in this process
    // for as long as that does, and which nobody else has.
    let child = unsafe { (*child.cast::<Option<F>>()).take() };
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| child.map_or(0, |child| child())));
    // To return would end this thread, not the process.
    std::process::exit(outcome.unwrap_or(PANICKED))
}

/// Gives the flags, and the address, by which the C library's note of the thread's number becomes the
/// new process's: of itself it must know who it is, to raise a signal for one.
fn number_of_its_own() -> (libc::c_int, *mut libc::c_int) {
    // musl's clone does so itself, as its fork does (src/linux/clone.c, since 1.2.5), and refuses
    // CLONE_CHILD_CLEARTID. What the kernel clears at a thread's end is the lock of its list of threads.
    if cfg!(target_env = "musl") {
        return (0, ptr::null_mut());
    }
    // As glibc's fork does (sysdeps/nptl/_Fork.c).
    match tid_address() {
        tid if tid.is_null() => (0, tid),
        tid => (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID, tid),
    }
}

/// Memory for a stack, with a part that ends a process which comes so far.
struct Stack {
    start: *mut libc::c_void,
    size: usize,
}

impl Stack {
    /// Maps `size` bytes, whole pages, of which [`GUARD`] cannot be used.
    fn new(size: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a new mapping, of a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { start, size };
        // SAFETY: what it takes is the beginning of this mapping, which nothing is in yet.
        check(unsafe { libc::mprotect(stack.start, GUARD, libc::PROT_NONE) })?;
        Ok(stack)
    }

    /// Gives where it begins: it grows downwards, on every architecture that pepd knows.
    fn top(&self) -> *mut libc::c_void {
        self.start.wrapping_byte_add(self.size)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and the process that runs on it has a copy. Only a length
        // that is none fails.
        unsafe { libc::munmap(self.start, self.size) };
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
