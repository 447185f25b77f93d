//! The system calls that pepd makes, and how each of them may fail.

use nix::errno::Errno;
use nix::libc::{self, c_long};

/// A system call, with the errors that it may give to a program that has made no mistake.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name, as strace(1) has it.
    pub name: &'static str,
    /// Its number on this machine.
    pub number: c_long,
    /// The errors, most likely first. None: it does not fail, or nobody looks.
    pub errors: &'static [Errno],
}

impl Call {
    /// Returns the call with this number.
    #[must_use]
    pub fn numbered(number: c_long) -> Option<&'static Self> {
        CALLS.iter().find(|call| call.number == number)
    }

    /// Returns the call with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CALLS.iter().find(|call| call.name == name)
    }

    /// Returns whether it has done its work even when it gives an error: a descriptor is closed by
    /// close(2) whatever that says.
    #[must_use]
    pub fn works_all_the_same(&self) -> bool {
        self.number == libc::SYS_close
    }

    /// Returns whether it asks a socket what it knows anyway: there, too, this kernel lacks nothing,
    /// whatever the manual says.
    #[must_use]
    pub fn asks_a_socket(&self) -> bool {
        let asking = [
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_getsockopt,
        ];
        asking.contains(&self.number)
    }

    /// Returns whether it gives memory: where there is none, Rust ends the process, or a thread
    /// that has just begun.
    #[must_use]
    pub fn allocates(&self) -> bool {
        [libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect].contains(&self.number)
    }
}

macro_rules! calls {
    ($($name:ident / $number:ident: $($error:ident)*;)*) => {
        &[$(Call {
            name: stringify!($name),
            number: libc::$number,
            errors: &[$(Errno::$error),*],
        }),*]
    };
}

/// All calls that have been seen. One that is not among them fails the test: it wants a line here.
///
/// EAGAIN is not among the errors of what is waited for by epoll: where it says that there is
/// nothing, while there is, whoever believes it waits for ever, and rightly.
const CALLS: &[Call] = calls! {
    // Files and descriptors.
    close / SYS_close: EINTR;
    dup / SYS_dup: EMFILE;
    fcntl / SYS_fcntl: EMFILE;
    flock / SYS_flock: ENOLCK EINTR;
    fstat / SYS_fstat: EIO;
    ftruncate / SYS_ftruncate: EIO ENOSPC;
    getdents64 / SYS_getdents64: EIO;
    ioctl / SYS_ioctl: ENOMEM ENODEV;
    lseek / SYS_lseek: EIO;
    memfd_create / SYS_memfd_create: EMFILE ENOMEM;
    mkdir / SYS_mkdir: ENOSPC EACCES;
    mkdirat / SYS_mkdirat: ENOSPC EACCES;
    chmod / SYS_chmod: EPERM EROFS;
    fchmod / SYS_fchmod: EPERM EROFS;
    fchmodat / SYS_fchmodat: EPERM EROFS;
    chown / SYS_chown: EPERM EROFS;
    lchown / SYS_lchown: EPERM EROFS;
    fchown / SYS_fchown: EPERM EROFS;
    fchownat / SYS_fchownat: EPERM EROFS;
    umask / SYS_umask: ;
    newfstatat / SYS_newfstatat: EIO EACCES;
    openat / SYS_openat: EMFILE ENOMEM EACCES EINTR;
    open / SYS_open: EMFILE ENOMEM EACCES EINTR;
    pread64 / SYS_pread64: EIO EINTR;
    read / SYS_read: EIO EINTR;
    readv / SYS_readv: EIO EINTR;
    readlink / SYS_readlink: ENOMEM EACCES;
    readlinkat / SYS_readlinkat: ENOMEM EACCES;
    rename / SYS_rename: ENOSPC EACCES;
    stat / SYS_stat: EIO EACCES;
    lstat / SYS_lstat: EIO EACCES;
    statx / SYS_statx: EIO EACCES;
    statfs / SYS_statfs: EIO;
    access / SYS_access: EACCES;
    unlink / SYS_unlink: EIO EACCES;
    unlinkat / SYS_unlinkat: EIO EACCES;
    write / SYS_write: EIO ENOSPC EINTR;
    writev / SYS_writev: EIO ENOSPC EINTR;
    pipe2 / SYS_pipe2: EMFILE ENFILE;
    splice / SYS_splice: ENOMEM EINTR;
    tee / SYS_tee: ENOMEM;
    close_range / SYS_close_range: EMFILE;
    // Sockets.
    accept4 / SYS_accept4: EMFILE ENOBUFS ECONNABORTED EPERM EINTR;
    bind / SYS_bind: ENOMEM EADDRINUSE EACCES;
    connect / SYS_connect: EADDRNOTAVAIL ENETUNREACH EPERM ENOBUFS;
    getpeername / SYS_getpeername: ENOBUFS ENOTCONN;
    getsockname / SYS_getsockname: ENOBUFS;
    getsockopt / SYS_getsockopt: ENOBUFS ENOPROTOOPT;
    listen / SYS_listen: EADDRINUSE;
    recvfrom / SYS_recvfrom: ENOMEM ENOBUFS EINTR;
    recvmsg / SYS_recvmsg: ENOMEM ENOBUFS EINTR;
    recvmmsg / SYS_recvmmsg: ENOMEM ENOBUFS EINTR;
    sendmsg / SYS_sendmsg: ENOBUFS ENOMEM EINTR EPERM;
    sendmmsg / SYS_sendmmsg: ENOBUFS ENOMEM EINTR EPERM;
    sendto / SYS_sendto: ENOBUFS ENOMEM EINTR EPERM;
    setsockopt / SYS_setsockopt: ENOMEM EPERM ENOPROTOOPT;
    shutdown / SYS_shutdown: ENOTCONN;
    socket / SYS_socket: EMFILE ENOBUFS EPERM;
    // The first of all: tokio makes one for signals as soon as it makes a runtime, and panics
    // without it. There is nothing yet that could be left.
    socketpair / SYS_socketpair: ;
    // Waiting.
    epoll_create1 / SYS_epoll_create1: EMFILE ENOMEM;
    epoll_ctl / SYS_epoll_ctl: ENOMEM ENOSPC;
    epoll_wait / SYS_epoll_wait: EINTR;
    epoll_pwait / SYS_epoll_pwait: EINTR;
    eventfd2 / SYS_eventfd2: EMFILE ENOMEM;
    futex / SYS_futex: EINTR;
    nanosleep / SYS_nanosleep: EINTR;
    clock_nanosleep / SYS_clock_nanosleep: EINTR;
    poll / SYS_poll: EINTR ENOMEM;
    ppoll / SYS_ppoll: EINTR ENOMEM;
    pselect6 / SYS_pselect6: EINTR ENOMEM;
    restart_syscall / SYS_restart_syscall: EINTR;
    timerfd_create / SYS_timerfd_create: EMFILE;
    timerfd_settime / SYS_timerfd_settime: ;
    inotify_init1 / SYS_inotify_init1: EMFILE;
    inotify_add_watch / SYS_inotify_add_watch: ENOSPC;
    // Processes and threads.
    clone / SYS_clone: EAGAIN ENOMEM;
    clone3 / SYS_clone3: EAGAIN ENOMEM;
    fork / SYS_fork: EAGAIN ENOMEM;
    vfork / SYS_vfork: EAGAIN ENOMEM;
    execve / SYS_execve: ENOMEM;
    kill / SYS_kill: EPERM;
    getpriority / SYS_getpriority: ;
    setpriority / SYS_setpriority: EACCES;
    tgkill / SYS_tgkill: ;
    pidfd_open / SYS_pidfd_open: EMFILE ENOMEM;
    pidfd_send_signal / SYS_pidfd_send_signal: EPERM;
    wait4 / SYS_wait4: EINTR;
    waitid / SYS_waitid: EINTR;
    setns / SYS_setns: EPERM ENOMEM;
    unshare / SYS_unshare: EPERM ENOMEM;
    // Privileges.
    capget / SYS_capget: EPERM;
    capset / SYS_capset: EPERM;
    prctl / SYS_prctl: EPERM;
    seccomp / SYS_seccomp: ENOMEM EINVAL;
    setuid / SYS_setuid: EAGAIN EPERM;
    setgid / SYS_setgid: EPERM;
    setresuid / SYS_setresuid: EAGAIN EPERM;
    setresgid / SYS_setresgid: EPERM;
    setgroups / SYS_setgroups: EPERM ENOMEM;
    landlock_create_ruleset / SYS_landlock_create_ruleset: ENOMEM EOPNOTSUPP;
    landlock_add_rule / SYS_landlock_add_rule: ENOMEM;
    landlock_restrict_self / SYS_landlock_restrict_self: EPERM;
    prlimit64 / SYS_prlimit64: EPERM;
    bpf / SYS_bpf: EPERM ENOMEM;
    // Memory.
    // It gives no error but the break as it was, and the C library asks mmap(2) then.
    brk / SYS_brk: ;
    mmap / SYS_mmap: ENOMEM;
    mremap / SYS_mremap: ENOMEM;
    mprotect / SYS_mprotect: ENOMEM;
    madvise / SYS_madvise: ENOMEM;
    munmap / SYS_munmap: ENOMEM;
    // The system.
    getrandom / SYS_getrandom: EINTR;
    uname / SYS_uname: ;
    sysinfo / SYS_sysinfo: ;
    getcpu / SYS_getcpu: ;
    clock_gettime / SYS_clock_gettime: ;
    sched_getaffinity / SYS_sched_getaffinity: EPERM;
    sched_setaffinity / SYS_sched_setaffinity: EPERM;
    sched_yield / SYS_sched_yield: ;
    // What only gives a number, or ends something.
    getcwd / SYS_getcwd: ;
    getpid / SYS_getpid: ;
    getppid / SYS_getppid: ;
    gettid / SYS_gettid: ;
    getuid / SYS_getuid: ;
    geteuid / SYS_geteuid: ;
    getgid / SYS_getgid: ;
    getegid / SYS_getegid: ;
    getresuid / SYS_getresuid: ;
    getresgid / SYS_getresgid: ;
    getgroups / SYS_getgroups: ;
    exit / SYS_exit: ;
    exit_group / SYS_exit_group: ;
    rseq / SYS_rseq: ;
    rt_sigaction / SYS_rt_sigaction: ;
    rt_sigprocmask / SYS_rt_sigprocmask: ;
    rt_sigreturn / SYS_rt_sigreturn: ;
    // For the keeper: one that is interrupted is a second that is over.
    rt_sigtimedwait / SYS_rt_sigtimedwait: EINTR;
    setpgid / SYS_setpgid: ;
    set_robust_list / SYS_set_robust_list: ;
    set_tid_address / SYS_set_tid_address: ;
    arch_prctl / SYS_arch_prctl: ;
    sigaltstack / SYS_sigaltstack: ;
};
