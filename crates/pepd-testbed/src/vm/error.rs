//! What keeps a guest from being prepared or started.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The result of preparing or starting a guest.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What keeps a guest from being prepared or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host's programs would not run in the guest.
    #[error("the guest runs the host's own programs, which must be for x86-64; this host is {0}")]
    Architecture(&'static str),
    /// Programs are not installed.
    #[error(transparent)]
    Missing(#[from] MissingPackages),
    /// The package index knows no such kernel.
    #[error(
        "apt knows no kernel package `{package}`: {message}\n\
         run `apt-get update` as root, or name another one with --kernel"
    )]
    UnknownPackage {
        /// The package asked for.
        package: String,
        /// What apt said.
        message: String,
    },
    /// A package holds no kernel.
    #[error("package `{package}` holds no {what}; name a linux-image package with --kernel")]
    NoKernel {
        /// The package unpacked.
        package: String,
        /// The file looked for.
        what: &'static str,
    },
    /// There is nowhere to keep the kernel.
    #[error("no place for the kernel's cache: set XDG_CACHE_HOME or HOME to a directory's path")]
    NoCache,
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The error, with its errno.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {message}")]
    Failed {
        /// The program.
        program: String,
        /// Its status.
        status: ExitStatus,
        /// What it wrote to stderr.
        message: String,
    },
    /// A file could not be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The call that was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error, with its errno.
        source: io::Error,
    },
    /// A call that names no file failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The call that was tried.
        action: &'static str,
        /// The error, with its errno.
        source: io::Error,
    },
    /// Something to be copied is not there.
    #[error("cannot copy `{0}` into the guest: no such file, and no such program in PATH")]
    NothingToCopy(String),
}

impl Error {
    /// Returns the status a command should end with (sysexits.h): 69 if the host lacks something,
    /// 77 if installing it takes root or a file is not permitted, 66 and 70 as defined there.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Architecture(_)
            | Self::UnknownPackage { .. }
            | Self::NoKernel { .. }
            | Self::NoCache => 69,
            Self::Missing(_) if !nix::unistd::geteuid().is_root() => 77,
            Self::Missing(_) | Self::Spawn { .. } | Self::Failed { .. } => 69,
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => 77,
            Self::NothingToCopy(_) => 66,
            Self::File { .. } | Self::System { .. } => 70,
        }
    }

    /// Returns what `map_err` takes: names the file and what was tried with it.
    pub(super) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    /// Returns what `map_err` takes: names the call.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

/// Debian packages to be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct MissingPackages(Vec<&'static str>);

impl MissingPackages {
    pub(super) fn new(packages: Vec<&'static str>) -> Self {
        Self(packages)
    }

    /// Returns the names of the packages.
    #[must_use]
    pub fn packages(&self) -> &[&'static str] {
        &self.0
    }
}

impl fmt::Display for MissingPackages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packages = self.0.join(" ");
        writeln!(
            f,
            "the guest needs packages that are not installed: {packages}"
        )?;
        if self.0.contains(&"apt") {
            f.write_str("its kernel comes from Debian's archive: use a Debian machine")
        } else {
            write!(
                f,
                "run as root: apt-get install --no-install-recommends {packages}"
            )
        }
    }
}
