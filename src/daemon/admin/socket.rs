//! The socket's file: made before privileges are given up, and removed at the end.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown,
};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Group, geteuid};
use pepd_config::{Admin, AdminSocket};
use socket2::{Domain, SockAddr, Type};

use crate::daemon::lock::runtime_directory;
use crate::daemon::privileges::user::Account;
use crate::exit::{Failure, Result};

/// A listening socket that nobody but its owner, root, and a group may open. Dropping it
/// removes the file.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// The file's device and inode: what is removed at the end must be what was made.
    made: (u64, u64),
    /// The lock that says that this daemon lives, for as long as it does.
    _lock: File,
}

impl Socket {
    /// Makes the socket that the configuration asks for. A file that a killed daemon has left is
    /// replaced; that of a living one is not.
    ///
    /// To be called before there is a second thread, since the umask belongs to all, and before
    /// capabilities are given up, since giving a file to a group takes one.
    ///
    /// In a directory of pepd's own the file is given to the account that the daemon will be, so
    /// that it can remove it. Elsewhere it stays the one's who makes it.
    pub fn bind(admin: &Admin, account: Option<&Account>) -> Result<Option<Self>> {
        let Some(path) = &socket_path(admin) else {
            return Ok(None);
        };
        let group = admin.group.as_deref().map(group).transpose()?;
        let is_own = make_directory(path, group, account)?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let failed = |error| unavailable("make", path, error);
        // Until it has its group, nobody else may open it.
        let usual = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(path);
        umask(usual);
        let listener = listener.map_err(failed)?;
        let made = fs::symlink_metadata(path).map_err(failed)?;
        let socket = Self {
            listener,
            path: path.clone(),
            made: (made.dev(), made.ino()),
            _lock: lock,
        };
        if let Some(group) = group {
            give(path, group, 0o660)?;
        }
        if let Some(account) = account.filter(|_| is_own) {
            account.give(path).map_err(failed)?;
        }
        socket.listener.set_nonblocking(true).map_err(failed)?;
        Ok(Some(socket))
    }

    /// Gives another handle of the listening socket, which does not block.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == self.made);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "remove the admin socket");
        }
    }
}

/// Returns where the socket is, if there is to be one.
pub fn socket_path(admin: &Admin) -> Option<PathBuf> {
    match &admin.socket {
        AdminSocket::Usual => Some(usual_socket()),
        AdminSocket::At(path) => Some(path.clone()),
        AdminSocket::Off => None,
    }
}

/// Returns where the socket is of a daemon whose file does not say.
pub fn usual_socket() -> PathBuf {
    runtime_directory().join("admin.sock")
}

/// Finds the number of a group. A number is one even if there is a group of that name: nobody has
/// one.
fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(Failure::unavailable(format!(
            "this host has no group `{name}`, which [admin] group names; make it with groupadd(8)"
        ))),
        Err(error) => Err(Failure::internal(&format!("look up group {name}"), error)),
    }
}

/// Makes the directory that the socket is in, which others may pass through; tells whether the
/// account may take files of its own out of it.
fn make_directory(path: &Path, group: Option<u32>, account: Option<&Account>) -> Result<bool> {
    let Some(directory) = path.parent() else {
        return Ok(false);
    };
    let is_new = !directory.exists();
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(|error| unavailable("make a directory for", path, error))?;
    if let Some(group) = group
        && let_pass(path, directory, group)?
    {
        return Ok(false);
    }
    let is_own = is_new
        || (directory == runtime_directory() || Account::was_let_in(directory))
            && is_pepds_alone(directory, path);
    // It fails for root without CAP_CHOWN. What comes of it is said once there is a log.
    let may = |account: &Account| account.let_in(directory).unwrap_or(false);
    Ok(is_own && account.is_some_and(may))
}

/// Tells whether nothing is in a directory but what pepd puts there: RUNTIME_DIRECTORY may name one
/// that others use as well.
fn is_pepds_alone(directory: &Path, socket: &Path) -> bool {
    let is_pepds = |entry: fs::DirEntry| {
        let name = entry.file_name();
        Some(name.as_os_str()) == socket.file_name() || name.to_string_lossy().ends_with(".lock")
    };
    fs::read_dir(directory).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_pepds)))
}

/// Has a group pass through the directory that the socket is in; tells whether that was called for.
fn let_pass(path: &Path, directory: &Path, group: u32) -> Result<bool> {
    // systemd's RuntimeDirectory= is the daemon's alone; the group has to pass through.
    let there = fs::metadata(directory)
        .map_err(|error| unavailable("look at the directory of", path, error))?;
    let ours = there.uid() == geteuid().as_raw();
    let closed = ours && there.mode() & 0o001 == 0;
    if closed && there.gid() != group {
        give(directory, group, 0o750)?;
    }
    Ok(closed)
}

/// Gives a file to a group.
fn give(path: &Path, group: u32, mode: u32) -> Result {
    chown(path, None, Some(group)).map_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            Failure::not_permitted(format!(
                "may not give {} to group {group} of [admin]; be root, or a member of it \
                 (SupplementaryGroups={group} in the systemd unit)",
                path.display()
            ))
        } else {
            unavailable("give a group to", path, error)
        }
    })?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| unavailable("set the mode of", path, error))
}

/// Takes the lock that is held while a daemon serves this path; the kernel releases it when the
/// process ends, however it ends. Daemons of different network namespaces may share a file system.
fn lock(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&name)
        .map_err(|error| unavailable("open", &name, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use(path)),
        Err(TryLockError::Error(error)) => Err(unavailable("lock", &name, error)),
    }
}

fn remove_stale(path: &Path) -> Result {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable("look at", path, error)),
    };
    if !there.file_type().is_socket() {
        return Err(Failure::unavailable(format!(
            "{} is there, and is no socket; remove it, or give [admin] socket another path",
            path.display()
        )));
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| unavailable("remove", path, error))
        }
        _ => Err(in_use(path)),
    }
}

/// Connects, and does not wait: the queue of a program that has stopped may be full.
fn connect(path: &Path) -> io::Result<()> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

fn in_use(path: &Path) -> Failure {
    Failure::unavailable(format!(
        "a living program listens at {}; end it, or give this daemon another [admin] socket",
        path.display()
    ))
}

fn unavailable(what: &str, path: &Path, error: io::Error) -> Failure {
    Failure::unavailable(format!(
        "{what} {}: {error}; [admin] socket needs a directory that the daemon may write",
        path.display()
    ))
}
