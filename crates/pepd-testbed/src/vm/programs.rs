//! The programs of the host that build and run a guest.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{Error, MissingPackages, Result};

/// Each program that is called, and Debian's package for it.
const PROGRAMS: [(&str, &str); 10] = [
    ("apt-cache", "apt"),
    ("apt-get", "apt"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
];

/// Looks for everything on the host that a guest needs.
///
/// # Errors
/// [`Error::Architecture`], or [`Error::Missing`] with the packages.
pub fn require_programs() -> Result<()> {
    if env::consts::ARCH != "x86_64" {
        return Err(Error::Architecture(env::consts::ARCH));
    }
    let mut missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(program, _)| find(OsStr::new(program)).is_none())
        .map(|(_, package)| package)
        .collect();
    // Package `busybox` has a program of the same name, which an initramfs cannot run.
    if find(OsStr::new("busybox")).is_some_and(|path| loads_libraries(&path)) {
        missing.push("busybox-static");
    }
    missing.dedup();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(MissingPackages::new(missing).into())
    }
}

/// Returns where `PATH`, and then the system's usual directories, have `program`.
pub(super) fn find(program: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        // A user's PATH often lacks these, and depmod is there.
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|path| is_executable(path))
}

/// Returns the libraries, and the loader, that `program` would be started with; none for a script
/// or a static one.
pub(super) fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(output) = command("ldd").arg(program).stderr(Stdio::null()).output() else {
        return Vec::new();
    };
    // `libc.so.6 => /lib/libc.so.6 (0x…)` or `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

/// Returns a command by its full path, with messages in English.
pub(super) fn command(program: &str) -> Command {
    let path = find(OsStr::new(program)).unwrap_or_else(|| PathBuf::from(program));
    let mut command = Command::new(path);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs `command` to its end and gives back what it wrote to stdout.
pub(super) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = name(command);
    let output = command.output().map_err(|source| Error::Spawn {
        program: program.clone(),
        source,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Failed {
        program,
        status: output.status,
        message,
    })
}

/// Returns the file name of the program that `command` runs.
pub(super) fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program
        .file_name()
        .map_or_else(|| OsString::from(program), OsStr::to_owned)
        .to_string_lossy()
        .into_owned()
}

fn loads_libraries(program: &Path) -> bool {
    !libraries(program).is_empty()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
