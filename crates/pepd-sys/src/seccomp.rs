//! Filters of system calls.

use std::io;

use crate::syscall::check;

/// An instruction of a filter (linux/filter.h, `sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How far it jumps where its condition holds.
    pub if_true: u8,
    /// How far it jumps where it does not.
    pub if_false: u8,
    /// Its operand.
    pub operand: u32,
}

/// Has a filter decide about each system call of this thread and of what it starts from now on
/// (seccomp(2), SECCOMP_SET_MODE_FILTER). The kernel's audit log tells of those that are refused
/// (SECCOMP_FILTER_FLAG_LOG).
///
/// # Errors
/// If the kernel does not take it, or new privileges are still to be had (`no_new_privs`).
pub fn filter_and_log(filter: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut instructions: Vec<libc::sock_filter> = filter
        .iter()
        .map(|instruction| libc::sock_filter {
            code: instruction.code,
            jt: instruction.if_true,
            jf: instruction.if_false,
            k: instruction.operand,
        })
        .collect();
    let program = libc::sock_fprog {
        len: length,
        filter: instructions.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the program and its `length` instructions, which live until the call
    // has returned; it keeps copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_LOG,
            &raw const program,
        )
    };
    check(libc::c_int::try_from(result).unwrap_or(-1)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// On a thread of its own: nobody else is to be confined.
    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn a_filter_that_is_none_is_refused_and_one_that_allows_all_is_taken() {
        let confined = || {
            // BPF_RET | BPF_K, SECCOMP_RET_ALLOW.
            let allow = Instruction {
                code: 6,
                if_true: 0,
                if_false: 0,
                operand: 0x7fff_0000,
            };
            let refused = filter_and_log(&[]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
            // SAFETY: it takes numbers only.
            check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).unwrap();
            filter_and_log(&[allow]).unwrap();
        };
        thread::spawn(confined).join().unwrap();
    }
}
