//! What keeps a user from reading a file: the file itself, or a directory above it.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::user::Account;

/// The first part of a path that a user may not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bar {
    /// A directory that it may not pass.
    Directory(PathBuf),
    /// The file, which it may not read.
    File(PathBuf),
}

impl Bar {
    /// Finds what keeps an account from a file, as root sees it; none if it may read it. Access lists
    /// are not looked at.
    pub fn to(account: &Account, file: &Path) -> Option<Self> {
        const READ: u32 = 4;
        const PASS: u32 = 1;
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let may = |path: &Path, mode| path.metadata().is_ok_and(|there| account.may(&there, mode));
        let directory = first_directory(&path, |directory| may(directory, PASS));
        directory.or_else(|| (!may(&path, READ)).then_some(Self::File(path)))
    }

    /// Finds what keeps this process from a file that it could not read.
    pub fn to_this_process(file: &Path) -> Self {
        // Without the right to pass nothing can be resolved: then the path is as it was given.
        let path = file
            .canonicalize()
            .or_else(|_| std::path::absolute(file))
            .unwrap_or_else(|_| file.to_owned());
        let may = |directory: &Path| access(directory, AccessFlags::X_OK).is_ok();
        first_directory(&path, may).unwrap_or(Self::File(path))
    }

    /// Says how this user comes to read the file.
    pub fn cure(&self, user: &str) -> String {
        match self {
            Self::Directory(path) => {
                let path = path.display();
                format!("let it pass: setfacl -m u:{user}:x {path} (or chmod o+x {path})")
            }
            Self::File(path) => {
                let path = path.display();
                format!("let it: setfacl -m u:{user}:r {path} (or chmod a+r {path})")
            }
        }
    }
}

/// Finds the first directory above a file, from the root on, that may not be passed.
fn first_directory(file: &Path, may: impl Fn(&Path) -> bool) -> Option<Bar> {
    let mut above: Vec<_> = file.ancestors().skip(1).collect();
    above.reverse();
    let bars = above.into_iter().find(|directory| !may(directory))?;
    Some(Bar::Directory(bars.to_owned()))
}

/// Says whose it is and how it may be opened, if that can be seen: what is added to a message.
impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, path) = match self {
            Self::Directory(path) => ("directory", path),
            Self::File(path) => ("file", path),
        };
        write!(f, "; the {what} {}", path.display())?;
        match path.metadata() {
            Ok(there) => write!(
                f,
                " has mode {:04o}, owner {}, group {}",
                there.mode() & 0o7777,
                there.uid(),
                there.gid()
            ),
            Err(_) => f.write_str(" bars it"),
        }
    }
}
