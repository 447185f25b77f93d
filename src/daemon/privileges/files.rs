//! Files by Landlock (landlock(7)): the daemon and the programs that it starts read them, write
//! none, and execute only what is where those programs are.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};
use pepd_config::Config;

use super::programs;
use crate::daemon::admin;

/// The version of Landlock whose kinds of access are confined, as far as the kernel knows them:
/// the latest that this was tried with. 6 is Linux 6.12; 2, as in Debian 12, lacks truncation,
/// ioctls on devices and signals.
const VERSION: ABI = ABI::V6;

/// What takes the locks of iptables programs that do not speak nf_tables.
const IPTABLES_LOCK: &str = "/run/xtables.lock";

/// What programs without input or output are given instead.
const NULL: &str = "/dev/null";

/// Makes the lock that root's iptables takes, as it does itself: once confined, it could not.
pub(super) fn make_iptables_lock() {
    if programs::has_legacy_iptables_only() {
        // What it cannot open it says itself.
        let _ = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(IPTABLES_LOCK);
    }
}

/// Confines this thread and all that it starts, and gives the version of Landlock that does; or
/// says why none does.
pub(super) fn restrict(config: &Config) -> Result<u32, String> {
    let status = try_restrict(config).map_err(|error| format!("Landlock: {error}"))?;
    match (&status.ruleset, version(&status.landlock)) {
        (RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced, Some(version)) => {
            Ok(version)
        }
        _ => Err(
            "Landlock (this kernel lacks it; CONFIG_SECURITY_LANDLOCK, and `landlock` in the \
             parameter lsm=)"
                .to_owned(),
        ),
    }
}

/// Gives the version of Landlock that this kernel has; none if it has none. Changes nothing.
///
/// Only a restriction tells, and a thread of its own bears it.
pub fn landlock_version() -> Option<u32> {
    let restrict = || {
        let ruleset = Ruleset::default().handle_access(AccessFs::Execute).ok()?;
        let status = ruleset.create().ok()?.restrict_self().ok()?;
        version(&status.landlock)
    };
    std::thread::spawn(restrict).join().ok().flatten()
}

fn version(status: &LandlockStatus) -> Option<u32> {
    match *status {
        LandlockStatus::Available {
            effective_abi,
            kernel_abi,
        } => {
            let known = effective_abi as i32;
            u32::try_from(kernel_abi.unwrap_or(known)).ok()
        }
        _ => None,
    }
}

fn try_restrict(config: &Config) -> Result<RestrictionStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let read_and_write = AccessFs::ReadFile | AccessFs::WriteFile;
    let execute: BitFlags<AccessFs> = AccessFs::Execute.into();
    // The admin socket goes at the end.
    let socket = admin::socket_path(&config.admin);
    let directory = socket.as_deref().and_then(Path::parent);
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(["/"], read))?
        .add_rules(path_beneath_rules([NULL, IPTABLES_LOCK], read_and_write))?
        .add_rules(path_beneath_rules(directory, AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(programs::executable(), execute))?
        .restrict_self()
}
