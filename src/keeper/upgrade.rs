//! The keeper becomes another program, and back again where that does not bring a daemon up.
//!
//! A process that executes a program keeps its number, and the descriptors that are not to be closed
//! then. So all of them are marked so for a moment, connections with the rest, and the board with
//! them, by which the new program finds everything.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File as OpenFile;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::execv;
use pepd_sys::descriptors::{self, Left};

use super::board::Board;
use crate::cli::{File, RunArgs};
use crate::exit::{Failure, Result};

/// The program that this process was before, which it becomes again if no daemon comes up.
///
/// Its descriptor is the daemon's as well, and so nobody's to close: once it is not needed any more, the
/// next daemon closes it with all else that nobody knows.
#[derive(Debug)]
pub(super) struct Former(&'static OwnedFd);

/// What a keeper begins with.
pub(super) struct Begun {
    pub(super) board: Board,
    /// The program before this one, where this one has been executed in the place of another.
    pub(super) former: Option<Former>,
    /// The text that its daemon was started with.
    pub(super) started: Option<String>,
}

/// Takes over what the program before this one has handed to it; or makes a board.
pub(super) fn take_over(args: &RunArgs) -> Result<Begun> {
    let Some(board) = args.board else {
        return Ok(Begun {
            board: Board::new()?,
            former: None,
            started: None,
        });
    };
    let failed = |error| Failure::internal("take over from the program before", error);
    let mut left = Left::find(&[]).map_err(failed)?;
    let board = left.take(board);
    let [former, started] = [args.former, args.started].map(|fd| left.take(fd?));
    // The rest is the next daemon's to find.
    left.leave();
    descriptors::close_all_on_exec().map_err(failed)?;
    let Some(board) = board else {
        return Err(Failure::unavailable(
            "--board is for pepd itself, when it becomes another program",
        ));
    };
    let former = former.map(|fd| Former(Box::leak(Box::new(fd))));
    Ok(Begun {
        board: Board::found(board)?,
        former,
        started: started.map(read_text).transpose().map_err(failed)?,
    })
}

/// The path of the program that this process runs: of the file that is there now, if it has been
/// replaced. Where it has been moved that is where it is now, as it is for whoever asks that program first.
fn own_path() -> PathBuf {
    path_of_now(std::env::current_exe().unwrap_or_else(|_| PathBuf::from("pepd")))
}

/// The path of the file that is there now, of a program that runs.
pub fn path_of_now(path: PathBuf) -> PathBuf {
    // As the kernel says of a file that is not there any more (proc_pid_exe(5)).
    let text = path.to_string_lossy().into_owned();
    text.strip_suffix(" (deleted)").map_or(path, PathBuf::from)
}

/// Becomes the program that is now at its path. It returns only where that is not possible, and nothing has
/// changed.
///
/// What the daemon was `started` with goes along in memory of its own: the board is not to be trusted for
/// that.
pub(super) fn become_program(file: &File, board: &Board, started: Option<&str>) -> io::Error {
    let own = OpenFile::options()
        .read(true)
        .custom_flags(OFlag::O_CLOEXEC.bits())
        .open("/proc/self/exe");
    let own = match own {
        Ok(own) => own,
        Err(error) => return error,
    };
    execute(&own_path(), file, (board, started), Some(own.as_raw_fd()))
}

impl Former {
    /// Borrows its descriptor, which is to stay open.
    pub(super) fn as_fd(&self) -> BorrowedFd<'static> {
        self.0.as_fd()
    }

    /// Becomes it again. It returns only where that is not possible.
    pub(super) fn become_again(
        &self,
        file: &File,
        board: &Board,
        started: Option<&str>,
    ) -> io::Error {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        execute(Path::new(&path), file, (board, started), None)
    }
}

fn execute(
    path: &Path,
    file: &File,
    (board, started): (&Board, Option<&str>),
    former: Option<RawFd>,
) -> io::Error {
    let mut args: Vec<OsString> = ["pepd", "run", "-c"].map(OsString::from).into();
    args.push(file.path.clone().into());
    if let Some(node) = &file.node {
        args.extend(["--node".into(), node.into()]);
    }
    args.push(format!("--board={}", board.as_fd().as_raw_fd()).into());
    args.extend(former.map(|former| format!("--former={former}").into()));
    match started.map(write_text).transpose() {
        Ok(started) => args.extend(started.map(|it| format!("--started={it}").into())),
        Err(error) => return error,
    }
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let args: std::result::Result<Vec<CString>, _> = args.iter().map(|arg| text(arg)).collect();
    let (path, args) = match (text(path.as_os_str()), args) {
        (Ok(path), Ok(args)) => (path, args),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    if let Err(error) = descriptors::keep_all_on_exec() {
        return error;
    }
    // Not std's: where a file is no program that has execvp(3) a shell read it, and this process were gone.
    let Err(error) = execv(&path, &args);
    // Programs that are started later are to have none of them.
    match descriptors::close_all_on_exec() {
        Ok(()) => error.into(),
        Err(worse) => worse,
    }
}

/// Writes a text into memory of its own; gives its descriptor, which is nobody's to close.
fn write_text(text: &str) -> io::Result<RawFd> {
    let memory = memfd_create("pepd-started", MFdFlags::MFD_CLOEXEC)?;
    let mut memory = OpenFile::from(memory);
    memory.write_all(text.as_bytes())?;
    Ok(memory.into_raw_fd())
}

fn read_text(memory: OwnedFd) -> io::Result<String> {
    let mut memory = OpenFile::from(memory);
    memory.rewind()?;
    let mut text = String::new();
    memory.read_to_string(&mut text)?;
    Ok(text)
}
