//! The user that the daemon becomes once everything that takes root is there.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{
    AccessFlags, Gid, Uid, User, access, fchown, geteuid, setgroups, setresgid, setresuid,
};
use pepd_config::Config;

use super::bar::Bar;
use crate::daemon::admin;
use crate::exit::{Failure, Result};

/// The user that is taken if the file names none and the host has it.
const OWN: &str = "pepd";

/// The user that is taken on a host without that one.
const NOBODY: &str = "nobody";

/// The number that is nobody's, also on a host that has no list of users
/// (Documentation/admin-guide/sysctl/fs.rst, overflowuid).
const NOBODYS_NUMBER: &str = "65534";

/// How an operator gives pepd a user of its own.
pub fn cure() -> String {
    cure_by(OWN)
}

fn cure_by(name: &str) -> String {
    format!("useradd --system --no-create-home --shell /usr/sbin/nologin {name}")
}

/// A user of this host, other than root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name, or the number of a user without one.
    pub name: String,
    uid: Uid,
    gid: Gid,
}

/// Finds the user that the daemon is to become: `[node] user`, or `pepd`, or `nobody`. None where
/// it is not root, which alone may become another, or where the file says that it stays root.
pub fn wanted(config: &Config) -> Result<Option<Account>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let account = match config.node.user.as_deref() {
        Some(name) => find(name)?.ok_or_else(|| {
            Failure::unavailable(format!(
                "this host has no user `{name}`, which [node] user names; make it: {}",
                cure_by(name)
            ))
        })?,
        None => usual()?,
    };
    Ok((!account.uid.is_root()).then_some(account))
}

fn usual() -> Result<Account> {
    for name in [OWN, NOBODY, NOBODYS_NUMBER] {
        if let Some(account) = find(name)? {
            return Ok(account);
        }
    }
    Err(Failure::unavailable(format!(
        "this host has no user to run as; make one: {}",
        cure()
    )))
}

/// Finds a user by name, or by number: a number is one even if there is a user of that name.
fn find(name: &str) -> Result<Option<Account>> {
    let failed = |error| Failure::internal(&format!("look up user {name}"), error);
    let (user, number) = match name.parse() {
        Ok(number) => (User::from_uid(Uid::from_raw(number)), Some(number)),
        Err(_) => (User::from_name(name), None),
    };
    let known = user.map_err(failed)?.map(|user| Account {
        name: user.name,
        uid: user.uid,
        gid: user.gid,
    });
    let nameless = |number: u32| Account {
        name: number.to_string(),
        uid: Uid::from_raw(number),
        gid: Gid::from_raw(number),
    };
    Ok(known.or_else(|| number.map(nameless)))
}

/// Tells whether a user of this name is one that programs of other services may run as, too.
pub fn is_shared(name: &str) -> bool {
    name == NOBODY
}

impl Account {
    /// Becomes this user, with its own group and no other, for good.
    pub(super) fn become_it(&self) -> Result {
        let change = || {
            setgroups(&[])?;
            setresgid(self.gid, self.gid, self.gid)?;
            setresuid(self.uid, self.uid, self.uid)
        };
        change().map_err(|error| match error {
            // EINVAL: a user namespace without that user.
            Errno::EPERM | Errno::EINVAL => Failure::not_permitted(format!(
                "may not become user `{}` ({error}): CAP_SETUID and CAP_SETGID are missing, or \
                 this container has no such user; start pepd as another user with \
                 CAP_NET_ADMIN, or, if it is to stay root, write `user = \"root\"` below [node]",
                self.name
            )),
            error => Failure::internal(&format!("become user {}", self.name), error),
        })
    }

    /// Lets this user's group put files into a directory of pepd's own, and take out those that are
    /// its own: the others, the lock among them, stay root's (the sticky bit). Tells whether it may;
    /// what is no directory of root's is left as it is.
    pub fn let_in(&self, directory: &Path) -> io::Result<bool> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = File::from(open(directory, flags, Mode::empty())?);
        let there = opened.metadata()?;
        if there.uid() != 0 {
            return Ok(false);
        }
        fchown(opened.as_fd(), None, Some(self.gid))?;
        let mode = there.mode() & 0o7777;
        opened.set_permissions(Permissions::from_mode(mode | 0o1070))?;
        Ok(true)
    }

    /// Tells whether a directory is one into which root has let some user's group in.
    pub fn was_let_in(directory: &Path) -> bool {
        std::fs::symlink_metadata(directory).is_ok_and(|there| {
            there.is_dir() && there.uid() == 0 && there.mode() & 0o1072 == 0o1070
        })
    }

    /// Gives this user a file.
    pub fn give(&self, file: &Path) -> io::Result<()> {
        lchown(file, Some(self.uid.as_raw()), None)
    }

    /// Tells whether this user may do with a file what all the bits of `mode` (7, for everything)
    /// say. Access lists are not looked at.
    pub fn may(&self, file: &Metadata, mode: u32) -> bool {
        let shift = if file.uid() == self.uid.as_raw() {
            6
        } else if file.gid() == self.gid.as_raw() {
            3
        } else {
            0
        };
        file.mode() >> shift & mode == mode
    }
}

/// Gives the name of this process's user, or its number.
pub fn name_of_this_process() -> String {
    let uid = geteuid();
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Logs what an operator should know about the user that the daemon is now.
pub(super) fn report(config: &Config) {
    let name = name_of_this_process();
    let asked = config.node.user.as_deref();
    if geteuid().is_root() {
        tracing::warn!(
            "it stays root, as [node] user asks; without that key it becomes `{OWN}`, or `{NOBODY}` \
             where this host has no such user"
        );
    } else if let Some(asked) = asked
        && asked != name
        && asked != geteuid().to_string()
    {
        tracing::warn!(
            "[node] user = \"{asked}\" has no effect: pepd was started as `{name}`, and only root \
             becomes another user"
        );
    } else if asked.is_none() && is_shared(&name) {
        tracing::info!(
            "programs of other services may run as `{NOBODY}`, too; a user of its own: {}",
            cure()
        );
    }
}

/// Warns of files that this process will miss: the configuration, which a reload reads again, and
/// the admin socket, which is to go at the end.
pub(super) fn report_files(config: &Config, file: &Path) {
    if let Err(error) = may(file, AccessFlags::R_OK) {
        let user = name_of_this_process();
        let bar = Bar::to_this_process(file);
        tracing::warn!(
            "`{user}` cannot read {} ({error}{bar}): a reload will be refused; {}",
            file.display(),
            bar.cure(&user)
        );
    }
    if let Some(socket) = admin::socket_path(&config.admin)
        && let Some(directory) = socket.parent()
        && let Err(error) = may(directory, AccessFlags::W_OK | AccessFlags::X_OK)
    {
        tracing::warn!(
            "{} cannot be removed at the end ({}: {error}), but is replaced at the next start; \
             put [admin] socket into /run/pepd, or give the directory to this user",
            socket.display(),
            directory.display()
        );
    }
}

fn may(path: &Path, what: AccessFlags) -> io::Result<()> {
    Ok(access(path, what)?)
}
