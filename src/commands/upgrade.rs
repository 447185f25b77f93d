//! `pepd upgrade`: this program takes over from a running daemon.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getuid};
use pepd_admin::wire::{DaemonState, Status, Survival, Takeover};
use pepd_sys::descriptors::close_all_on_exec;
use pepd_sys::process::in_a_session_of_its_own;
use procfs::ProcError;
use procfs::process::Process;

use crate::cli::{Target, UpgradeArgs};
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::config_file;
use crate::exit::{Failure, Result};
use crate::keeper;
use crate::keeper::board::Board;
use crate::ui::format;
use crate::ui::output::{eprint, print};

/// The time within which the daemon is to be up again: as long as the other program has, and some for
/// the one before.
const LIMIT: Duration = Duration::from_secs(120);

/// The time that a program has to say whether it can take over: it reads a file.
const ANSWER: Duration = Duration::from_secs(20);

/// The bytes of what it says that are passed on.
const MOST_SAID: u64 = 16 * 1024;

/// Where that program may look for others.
const PROGRAMS: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(50);

/// Has the running daemon become the program that is now at its path, and says what has come of it.
pub fn upgrade(args: &UpgradeArgs) -> Result {
    if let Some(layout) = args.takes_over {
        return takes_over(&args.target, layout);
    }
    let client = Client::new(&args.target)?;
    let status: Status = client.get(endpoint::STATUS)?;
    if status.state == DaemonState::Draining {
        return Err(draining());
    }
    let before = survival(status)?;
    let keeper = Keeper::of(&client)?;
    keeper.require_another()?;
    ask(&keeper, before.layout, args.target.config.as_deref())?;
    kill(keeper.pid, Signal::SIGUSR2).map_err(|error| match error {
        Errno::EPERM => not_permitted(),
        error => Failure::internal("tell the keeper", error),
    })?;
    let last = await_end(&client, &keeper, before.count())?;
    if last.cause != "upgrade" {
        return Err(Failure::internal(
            "upgrade",
            format!("{}; its log may say more", last.why),
        ));
    }
    let said = format!(
        "upgraded: {} connections went on after {}, {} were reset\n",
        last.connections,
        format::seconds(last.pause),
        last.lost
    );
    print(said.as_bytes())
}

fn draining() -> Failure {
    Failure::unavailable(
        "the daemon is ending, and is not upgraded: nothing was done. The one that is started after it is of \
         the new program",
    )
}

fn not_permitted() -> Failure {
    Failure::not_permitted(
        "only root may upgrade it, or the user that pepd was started as if it has the capabilities that pepd has",
    )
}

/// The process that is to become another program.
///
/// The kernel says which it is, and the daemon is not asked: that has less privileges than whoever
/// upgrades it, and who had taken it over would choose what is executed.
struct Keeper {
    pid: Pid,
    /// Itself, also if another process gets its number.
    process: Process,
    /// Whose process it is: that user, and group.
    user: (u32, u32),
    /// The path of its program, of the file that is there now.
    program: PathBuf,
}

impl Keeper {
    /// Finds the parent of the process that answers.
    fn of(client: &Client) -> Result<Self> {
        let unknown = |error: &dyn std::fmt::Display| {
            Failure::unavailable(format!(
                "cannot tell which process is to be upgraded: {error}; is it one of this host, and is \
                 /proc mounted?"
            ))
        };
        let daemon = client.listener().map_err(|error| unknown(&error))?;
        let of = |pid: i32| Process::new(pid).map_err(|error| unknown(&error));
        let status = of(daemon.as_raw())?.status();
        let parent = of(status.map_err(|error| unknown(&error))?.ppid)?;
        let status = parent.status().map_err(|error| unknown(&error))?;
        let own = getuid();
        if !own.is_root() && status.ruid != own.as_raw() {
            return Err(not_permitted());
        }
        let program = parent.exe().map_err(|error| match error {
            // It has capabilities that this process lacks (proc_pid_exe(5)).
            ProcError::PermissionDenied(_) => not_permitted(),
            error => unknown(&error),
        })?;
        Ok(Self {
            pid: Pid::from_raw(parent.pid()),
            user: (status.ruid, status.rgid),
            program: keeper::path_of_now(program),
            process: parent,
        })
    }

    /// Returns whether it still runs: it may have ended, and not been waited for.
    fn runs(&self) -> bool {
        self.process.stat().is_ok_and(|stat| stat.state != 'Z')
    }

    /// Refuses where the program that is to take over is the very file that runs, and this one is not:
    /// then it was moved away, and the kernel goes by the file, not by the name that it had.
    fn require_another(&self) -> Result {
        let file = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino()));
        let running = file(&Path::new("/proc").join(self.pid.to_string()).join("exe"));
        let (Ok(running), Ok(there), Ok(own)) = (
            running,
            file(&self.program),
            file(Path::new("/proc/self/exe")),
        ) else {
            return Ok(());
        };
        if running != there || running == own {
            return Ok(());
        }
        let name = self.program.display();
        Err(Failure::unavailable(format!(
            "{name} is the very file that runs; it would be followed by itself. If it was moved there to make \
             room, move the new one over {name} (mv(1)), and it takes over"
        )))
    }
}

/// What a program says on a line of its own, and no other would, that can take over from a daemon of this
/// layout: to end well is not enough, since many programs do whatever they are told.
fn promise(layout: u64) -> String {
    format!("this pepd takes over from one of layout {layout:x}")
}

/// Says whether this program can take over from a daemon of this layout, with this file.
fn takes_over(target: &Target, layout: u64) -> Result {
    if let Some(path) = &target.config {
        config_file::read(&target.file(path))?;
    }
    if layout == Board::layout() {
        return print(format!("{}\n", promise(layout)).as_bytes());
    }
    Err(Failure::unavailable(
        "the running pepd keeps its notes in another way than this one, which cannot go on with its \
         connections; `systemctl restart pepd` replaces it, and cuts them",
    ))
}

/// Asks the program that is to take over whether it can: it says why not by itself.
///
/// It runs as the keeper's user, as it will if it takes over: which program that is, whoever has that
/// user's rights may choose, and is to gain nothing by it. So it has nothing else of this process: no terminal,
/// no descriptor, no variable but PATH, and not its directory.
fn ask(keeper: &Keeper, layout: u64, config: Option<&Path>) -> Result {
    let name = keeper.program.display();
    let mut program = Command::new(&keeper.program);
    let (user, group) = keeper.user;
    if getuid().is_root() && user != 0 {
        program.uid(user).gid(group);
    }
    program.args(["upgrade", "--takes-over", &layout.to_string()]);
    if let Some(config) = config {
        // As seen from here.
        let config = std::path::absolute(config);
        program
            .arg("-c")
            .arg(config.map_err(|error| Failure::internal("find the file", error))?);
    }
    program.env_clear().env("PATH", PROGRAMS).current_dir("/");
    in_a_session_of_its_own(&mut program);
    close_all_on_exec().map_err(|error| Failure::internal("keep descriptors back", error))?;
    match answer(&mut program) {
        Ok(Some((status, said))) if status.success() => {
            let promise = promise(layout);
            match said.lines().any(|line| line == promise) {
                true => Ok(()),
                false => Err(Failure::unavailable(format!(
                    "{name}, which is to take over, has not said that it can: is it a pepd? The old one goes on"
                ))),
            }
        }
        Ok(Some((status, _))) => Err(Failure::unavailable(format!(
            "{name} cannot take over ({status}); the old one goes on"
        ))),
        Ok(None) => Err(Failure::unavailable(format!(
            "{name}, which is to take over, has not answered within {} s; the old one goes on",
            ANSWER.as_secs()
        ))),
        Err(error) => Err(Failure::unavailable(format!(
            "{name}, which is to take over, cannot be started: {error}; the old one goes on"
        ))),
    }
}

/// Runs a program, passes on what it complains of, and gives what has come of it, and its answer; none where
/// it has not ended in time, and was killed.
fn answer(program: &mut Command) -> io::Result<Option<(ExitStatus, String)>> {
    let begun = Instant::now();
    // No pipes, at which whoever has their other ends may keep this process waiting.
    let memory = || memfd_create("said", MFdFlags::MFD_CLOEXEC).map(File::from);
    let (mut said, mut complaint) = (memory()?, memory()?);
    program.stdin(Stdio::null()).stdout(said.try_clone()?);
    program.stderr(complaint.try_clone()?);
    let mut child = program.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            complaint.rewind()?;
            pass_on(&text(complaint));
            said.rewind()?;
            return Ok(Some((status, text(said))));
        }
        if begun.elapsed() >= ANSWER {
            // With what it has started. It is not reaped yet, so its number is its own.
            if let Ok(group) = i32::try_from(child.id()) {
                killpg(Pid::from_raw(group), Signal::SIGKILL)?;
            }
            child.wait()?;
            return Ok(None);
        }
        thread::park_timeout(PAUSE);
    }
}

/// Reads the first of what a program has said.
fn text(said: impl Read) -> String {
    let mut text = Vec::new();
    // Something has been said, or nothing.
    let _ = said.take(MOST_SAID).read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Prints what a program has said, without what a terminal would take for more than text.
fn pass_on(text: &str) {
    for line in text.lines() {
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        eprint(line.chars().map(shown).collect::<String>());
    }
}

fn survival(status: Status) -> Result<Survival> {
    status.survival.ok_or_else(|| {
        Failure::unavailable("the running pepd is of a version that cannot be upgraded; restart it")
    })
}

/// Waits until there is another process; of an upgrade that fails there are two.
fn await_end(client: &Client, keeper: &Keeper, before: u64) -> Result<Takeover> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        // In between nobody answers.
        if let Ok(status) = client.get::<Status>(endpoint::STATUS) {
            let is_draining = status.state == DaemonState::Draining;
            let now = survival(status)?;
            match now.last {
                Some(last) if now.count() > before => return Ok(last),
                // The keeper does not replace one that ends.
                _ if is_draining => return Err(draining()),
                _ => {}
            }
        }
        if !keeper.runs() {
            return Err(Failure::temporary(format!(
                "the keeper (process {}) has ended, and its connections are reset, unless it was asked to end \
                 just then; start it again (`systemctl start pepd`)",
                keeper.pid
            )));
        }
        thread::park_timeout(PAUSE);
    }
    Err(Failure::temporary(format!(
        "the daemon has not answered for {} s; its log says why",
        LIMIT.as_secs()
    )))
}
