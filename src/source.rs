//! Reading the configuration file, with what this host has to say about it.

use std::fs;
use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::path::Path;

use pepd_config::{Config, Context, Report};

use crate::exit::{Failure, Result};

/// Reads and validates the file; what is wrong is the failure's message.
pub fn read(path: &Path) -> Result<Config> {
    load(path).map_err(|report| Failure::configuration(report.render(io::stderr().is_terminal())))
}

/// Reads and validates the file.
pub fn load(path: &Path) -> std::result::Result<Config, Report> {
    let origin = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| Report::unreadable(&origin, &error))?;
    pepd_config::parse(
        &origin,
        &text,
        &Context {
            ephemeral_ports: ephemeral_ports(),
        },
    )
}

/// The ports that the kernel gives to outgoing connections, or its default
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
