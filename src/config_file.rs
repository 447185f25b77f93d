//! Reading the configuration file, with what this host has to say about it.

use std::fs::{self, File as OpenFile};
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::OFlag;
use pepd_config::{Config, Context, Report};

use crate::cli::File;
use crate::daemon::privileges::bar::Bar;
use crate::daemon::privileges::user;
use crate::exit::{Failure, Result};
use crate::time_limit::{self, NoResult};
use crate::ui::output::has_colours;

/// The time that reading and understanding a file may take. One of a mount that hangs would take
/// for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// The bytes of a file at most. A fleet of a hundred boxes takes a tenth of it.
const LARGEST: u64 = 4 << 20;

/// Reads and validates the file, for this box; what is wrong is the failure's message.
pub fn read(file: &File) -> Result<Config> {
    read_with_text(file).map(|(config, _)| config)
}

/// As [`read`], and gives the text as well.
pub fn read_with_text(file: &File) -> Result<(Config, String)> {
    read_in_time(file, pepd_config::parse)
}

/// Validates again what was read before, whatever has become of the file since.
pub fn understand(file: &File, text: &str) -> Result<Config> {
    understand_as(file, text, pepd_config::parse, false)
}

/// Reads and validates the file, for every box of the fleet.
pub fn read_all(file: &File) -> Result<Vec<Config>> {
    read_in_time(file, pepd_config::parse_all).map(|(configs, _)| configs)
}

fn read_in_time<T: Send + 'static>(file: &File, parse: Parse<T>) -> Result<(T, String)> {
    let (wanted, colour) = (file.clone(), has_colours(&io::stderr()));
    match time_limit::run(LIMIT, move || load(&wanted, parse, colour)) {
        Ok(result) => result,
        Err(why) => Err(unread(file, &why)),
    }
}

/// Reads and validates the file again while the daemon runs: the failure's message is for the log
/// and the admin API, so without colour. Gives the text as well.
pub async fn read_again(file: &File) -> Result<(Config, String)> {
    /// Whether a thread that was left behind still waits for the file.
    static WAITS: AtomicBool = AtomicBool::new(false);
    if WAITS.swap(true, Ordering::Relaxed) {
        return Err(Failure::temporary(format!(
            "{}: the last attempt to read it still waits for its file system",
            file.path.display()
        )));
    }
    let wanted = file.clone();
    let result = time_limit::run_async(LIMIT, move || {
        let result = load(&wanted, pepd_config::parse, false);
        WAITS.store(false, Ordering::Relaxed);
        result
    });
    match result.await {
        Ok(result) => result,
        Err(why) => {
            if matches!(why, NoResult::Thread(_)) {
                WAITS.store(false, Ordering::Relaxed);
            }
            Err(unread(file, &why))
        }
    }
}

fn unread(file: &File, why: &NoResult) -> Failure {
    Failure::temporary(format!(
        "read {}: {why}; does the file system that it is on answer? (ls -l {})",
        file.path.display(),
        file.path.display()
    ))
}

/// A parser of a file's text, given its name.
type Parse<T> = fn(&str, &str, &Context) -> std::result::Result<T, Report>;

fn load<T>(file: &File, parse: Parse<T>, colour: bool) -> Result<(T, String)> {
    let text = text(&file.path).map_err(|error| unreadable(file, &error, colour))?;
    let understood = understand_as(file, &text, parse, colour)?;
    Ok((understood, text))
}

fn understand_as<T>(file: &File, text: &str, parse: Parse<T>, colour: bool) -> Result<T> {
    let origin = file.path.display().to_string();
    let context = Context {
        ephemeral_ports: ephemeral_ports(),
        node: file.node.clone(),
        host: host_name(),
    };
    parse(&origin, text, &context).map_err(|report| Failure::configuration(report.render(colour)))
}

/// Says why a file cannot be read and, to a user who may not, who that is and who may.
fn unreadable(file: &File, error: &io::Error, colour: bool) -> Failure {
    let path = &file.path;
    let mut said = Report::unreadable(&path.display().to_string(), error).render(colour);
    if error.kind() == io::ErrorKind::PermissionDenied {
        let name = user::name_of_this_process();
        let bar = Bar::to_this_process(path);
        said = format!(
            "{}\nthis process is `{name}`{bar}; {}",
            said.trim_end(),
            bar.cure(&name)
        );
    }
    Failure::configuration(said)
}

/// Reads a regular file whole. To open anything else may take for ever (a FIFO), or do something (a
/// device).
pub fn text(path: &Path) -> io::Result<String> {
    let refused = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let is_regular = |there: &fs::Metadata| there.is_file() || there.is_dir();
    if !is_regular(&fs::metadata(path)?) {
        return refused(NOT_REGULAR);
    }
    let file = OpenFile::options()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(path)?;
    let opened = file.metadata()?;
    if !is_regular(&opened) {
        return refused(NOT_REGULAR);
    }
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text)?;
    if opened.len() > LARGEST || text.len() as u64 > LARGEST {
        return refused("it has more than 4 MiB, which no file of settings has");
    }
    Ok(text)
}

const NOT_REGULAR: &str = "it is no regular file, but a FIFO, a socket or a device";

/// Gives the host's name, if it has one.
fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    // The kernel's own, for a host that nobody has named.
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}

/// Gives the ports that the kernel gives to outgoing connections, or its default
/// (Documentation/networking/ip-sysctl.rst) where it does not say.
fn ephemeral_ports() -> RangeInclusive<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| {
            let mut ports = text.split_whitespace().map(|port| port.parse().ok());
            Some(ports.next()??..=ports.next()??)
        });
    range.unwrap_or(32768..=60999)
}
