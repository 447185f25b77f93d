//! Reading the configuration file, with what this host has to say about it.

use std::fs;
use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;

use pepd_config::{Config, Context, Report};

use crate::cli::File;
use crate::daemon::privileges::user;
use crate::exit::{Failure, Result};

/// Reads and validates the file, for this box; what is wrong is the failure's message.
pub fn read(file: &File) -> Result<Config> {
    load(file, pepd_config::parse, io::stderr().is_terminal())
}

/// Reads and validates the file again while the daemon runs: the failure's message is for the log
/// and the admin API, so without colour.
pub fn read_again(file: &File) -> Result<Config> {
    load(file, pepd_config::parse, false)
}

/// Reads and validates the file, for every box of the fleet.
pub fn read_all(file: &File) -> Result<Vec<Config>> {
    load(file, pepd_config::parse_all, io::stderr().is_terminal())
}

/// A parser of a file's text, given its name.
type Parse<T> = fn(&str, &str, &Context) -> std::result::Result<T, Report>;

fn load<T>(file: &File, parse: Parse<T>, colour: bool) -> Result<T> {
    let origin = file.path.display().to_string();
    let context = Context {
        ephemeral_ports: ephemeral_ports(),
        node: file.node.clone(),
        host: host_name(),
    };
    let text = fs::read_to_string(&file.path).map_err(|error| unreadable(file, &error, colour))?;
    parse(&origin, &text, &context).map_err(|report| Failure::configuration(report.render(colour)))
}

/// Says why a file cannot be read and, to a user who may not, who that is and who may.
fn unreadable(file: &File, error: &io::Error, colour: bool) -> Failure {
    let path = &file.path;
    let mut said = Report::unreadable(&path.display().to_string(), error).render(colour);
    if error.kind() == io::ErrorKind::PermissionDenied {
        let name = user::name_of_this_process();
        let (mode, cure) = (user::mode_of(path), user::cure_for(path, &name));
        said = format!(
            "{}\nthis process is `{name}`{mode}; {cure}",
            said.trim_end()
        );
    }
    Failure::configuration(said)
}

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
