//! System calls by seccomp (seccomp(2)): what the daemon and the programs that it starts call
//! works, and what they have no use for fails, which the kernel's audit log tells. Nothing is killed
//! for a call: whoever has made it gains nothing, and others' connections live on.
//!
//! Two filters, of which the strictest answer counts. Calls that are allowed whatever their
//! arguments cost nothing: the kernel remembers them (Linux 5.11). So what a connection calls often
//! is allowed without looking at its arguments.

use std::collections::BTreeMap;
use std::fs;

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET,
    CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, ENOSYS, EPERM, c_int, c_long,
};
use pepd_sys::seccomp::Instruction;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

mod lists;

/// The families of sockets that pepd, nft, iptables and the C library have a use for.
const FAMILIES: [c_int; 4] = [AF_UNIX, AF_INET, AF_INET6, AF_NETLINK];

/// New namespaces, a user's above all, open much of the kernel to those who may do nothing.
const NEW_NAMESPACES: c_int = CLONE_NEWCGROUP
    | CLONE_NEWIPC
    | CLONE_NEWNET
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWUSER
    | CLONE_NEWUTS;

/// The commands of bpf(2) that steer a congestion control and unregister it: BPF_MAP_LOOKUP_ELEM,
/// BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM and BPF_LINK_DETACH (linux/bpf.h). All take a descriptor.
const OF_CONTROLS: [u64; 4] = [1, 2, 3, 34];

/// The rules for each system call: any may hold; without one it always does.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Confines this process and all that it starts; or says why it cannot.
pub(super) fn filter(has_controls: bool) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("the filter of system calls: {error}");
    let (unknown, refused) = programs(has_controls).map_err(|error| failed(&error))?;
    seccompiler::apply_filter(&unknown).map_err(|error| failed(&error))?;
    apply_and_log(&refused).map_err(|error| failed(&error))
}

/// Puts a program into force, and has the audit log tell of what it refuses.
fn apply_and_log(program: &[sock_filter]) -> std::io::Result<()> {
    let instruction = |it: &sock_filter| Instruction {
        code: it.code,
        if_true: it.jt,
        if_false: it.jf,
        operand: it.k,
    };
    let program: Vec<Instruction> = program.iter().map(instruction).collect();
    pepd_sys::seccomp::filter_and_log(&program)
}

/// Tells whether this kernel can filter system calls.
pub fn are_filtered_here() -> bool {
    fs::exists("/proc/sys/kernel/seccomp/actions_avail").unwrap_or(false)
}

/// Gives what makes calls unknown, and what refuses all that are not allowed.
fn programs(has_controls: bool) -> Result<(BpfProgram, BpfProgram), BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let program = |rules, matching, otherwise| {
        SeccompFilter::new(rules, otherwise, matching, architecture)?.try_into()
    };
    let refused = |errno: c_int| SeccompAction::Errno(errno.unsigned_abs());
    Ok((
        // The C library does without them where the kernel does not know them, and only then.
        program(unknown(), refused(ENOSYS), SeccompAction::Allow)?,
        program(allowed(has_controls)?, SeccompAction::Allow, refused(EPERM))?,
    ))
}

fn always(calls: &[c_long]) -> Rules {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// Gives a rule that an argument fulfils.
fn argument(index: u8, op: Op, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(index, Width::Dword, op, value)?])
}

fn bits(number: c_int) -> u64 {
    number.unsigned_abs().into()
}

fn allowed(has_controls: bool) -> Result<Rules, BackendError> {
    let mut rules = always(lists::ALLOWED);
    rules.append(&mut always(lists::ALLOWED_OF_ARCHITECTURE));
    // Another filter refuses these: of two refusals, that of the filter installed last would count.
    rules.append(&mut unknown());
    let families = FAMILIES.map(|family| argument(0, Op::Eq, bits(family)));
    rules.insert(
        libc::SYS_socket,
        families.into_iter().collect::<Result<_, _>>()?,
    );
    let no_namespace = argument(0, Op::MaskedEq(bits(NEW_NAMESPACES)), 0)?;
    rules.insert(libc::SYS_clone, vec![no_namespace]);
    // Its own limits, and nobody else's.
    rules.insert(libc::SYS_prlimit64, vec![argument(0, Op::Eq, 0)?]);
    if has_controls {
        let commands = OF_CONTROLS.map(|command| argument(0, Op::Eq, command));
        rules.insert(
            libc::SYS_bpf,
            commands.into_iter().collect::<Result<_, _>>()?,
        );
    }
    Ok(rules)
}

/// Gives the calls that are said not to exist: clone3, whose flags a filter cannot see, and those
/// newer than Linux 5.15 that are not allowed, some of which no C library knows yet.
fn unknown() -> Rules {
    let newer = lists::FIRST_UNKNOWN..lists::FIRST_UNKNOWN + 128;
    newer
        .filter(|call| !lists::ALLOWED.contains(call))
        .chain([libc::SYS_clone3])
        .map(|call| (call, Vec::new()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_is_unknown_is_not_refused_and_no_call_is_both_allowed_and_unknown() {
        for has_controls in [false, true] {
            let allowed = allowed(has_controls).unwrap();
            let unknown = unknown();
            assert!(unknown.keys().all(|call| allowed.contains_key(call)));
            let listed = [lists::ALLOWED, lists::ALLOWED_OF_ARCHITECTURE].concat();
            assert!(listed.iter().all(|call| !unknown.contains_key(call)));
            assert_eq!(allowed.contains_key(&libc::SYS_bpf), has_controls);
        }
    }

    /// On a thread of its own: nobody else is to be confined.
    #[test]
    fn a_confined_thread_works_and_what_it_has_no_use_for_fails() {
        let confined = || {
            filter(false).unwrap();
            let call = |socket: Result<_, nix::Error>| socket.map(drop);
            use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
            let open = |family| call(socket(family, SockType::Datagram, SockFlag::empty(), None));
            assert_eq!(open(AddressFamily::Inet), Ok(()));
            assert_eq!(open(AddressFamily::Unix), Ok(()));
            assert_eq!(open(AddressFamily::Packet), Err(nix::Error::EPERM));
            assert_eq!(open(AddressFamily::Alg), Err(nix::Error::EPERM));
            let here = thread::Builder::new().spawn(|| 1).unwrap().join().unwrap();
            assert_eq!(here, 1);
            let said = std::process::Command::new("true").status().unwrap();
            assert!(said.success());
            // Not by the C library, which has all threads do it, and aborts where they differ.
            let groups = rustix::thread::set_thread_groups(&[]);
            assert_eq!(groups, Err(rustix::io::Errno::PERM));
            // What only an attacker would call is refused as well, and ends nothing.
            assert_eq!(nix::unistd::chroot("/"), Err(nix::Error::EPERM));
        };
        thread::spawn(confined).join().unwrap();
    }
}
