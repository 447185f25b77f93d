//! One failing system call.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use nix::errno::Errno;

use super::call::Call;

/// The call of this kind that fails, counted from one over all of the daemon's threads, and how:
/// `splice:3:ENOMEM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The system call.
    pub call: &'static Call,
    /// Which of them.
    pub nth: u32,
    /// What it gives instead of doing its work.
    pub error: Errno,
}

impl Fault {
    /// Returns the name of the call.
    #[must_use]
    pub fn call_name(&self) -> &'static str {
        self.call.name
    }

    /// Returns whether no connection may break by it. Where a call was interrupted, or lacked memory
    /// or a descriptor for a moment, it can be made again, and whoever has not been answered yet can
    /// be routed.
    pub(super) fn spares_connections(&self) -> bool {
        const PASSING: [Errno; 6] = [
            Errno::EINTR,
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOBUFS,
            Errno::ENOMEM,
            Errno::ENOSPC,
        ];
        PASSING.contains(&self.error) && !self.call.allocates() && !self.call.asks_a_socket()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{:?}", self.call.name, self.nth, self.error)
    }
}

impl FromStr for Fault {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let [name, nth, error] = text
            .splitn(3, ':')
            .collect::<Vec<_>>()
            .try_into()
            .ok()
            .context("a fault is written CALL:N:ERROR, as splice:3:ENOMEM")?;
        let call = Call::named(name).with_context(|| format!("no system call `{name}` here"))?;
        let known = |errno: &Errno| format!("{errno:?}") == error;
        let error = (1..=133).map(Errno::from_raw).find(known);
        Ok(Self {
            call,
            nth: nth.parse().context("N is a number from 1 on")?,
            error: error.context("no such error")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        let text = "splice:3:ENOMEM";
        assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        for wrong in ["splice", "splice:3", "splise:3:ENOMEM", "splice:3:ENOTHING"] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }
}
