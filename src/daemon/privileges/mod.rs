//! What the daemon may do, and giving up all else.
//!
//! In the order in which it happens: [`require`] before anything is touched; then, once everything
//! that takes root is there, [`confine`]: another user and few capabilities ([`user`],
//! [`capabilities`]), files that are read-only ([`files`], and the [`programs`] that may be run),
//! and few system calls ([`system_calls`]). All of it is inherited by each thread and program that
//! is started later, and none can be had back.

pub mod bar;
mod capabilities;
mod files;
mod programs;
mod system_calls;
pub mod user;

use std::fmt;
use std::path::Path;

use pepd_admin::wire::Confinement;
use pepd_config::Config;

pub use self::capabilities::{Privileges, gather, require};
pub use self::files::landlock_version;
pub use self::system_calls::are_filtered_here;
use self::user::Account;
use crate::exit::Result;

/// What a daemon needs of the privileges that it is about to give up.
#[derive(Debug)]
pub struct Needs<'c> {
    /// The configuration of the start.
    pub config: &'c Config,
    /// Whether there are congestion controls in BPF, to steer and to remove at the end.
    pub has_controls: bool,
}

/// Becomes `account`, if it is to be another, and gives up for good what the daemon does not need.
/// To be called before there is a second thread: most of it is the calling thread's alone.
pub fn confine(account: Option<&Account>, needs: &Needs<'_>) -> Result<InForce> {
    if account.is_none() {
        files::make_iptables_lock();
    }
    pepd_net::open_iptables_lists();
    let held = capabilities::Held::keep(needs.config)?;
    if let Some(account) = account {
        account.become_it()?;
    }
    let capabilities = held.give_up_the_rest()?;
    let mut lacks = Vec::new();
    let landlock = match files::restrict(needs.config) {
        Ok(version) => Some(version),
        Err(why) => {
            lacks.push(why);
            None
        }
    };
    let filtered = match system_calls::filter(needs.has_controls) {
        Ok(()) => true,
        Err(why) => {
            lacks.push(why);
            false
        }
    };
    Ok(InForce {
        confinement: Confinement {
            user: user::name_of_this_process(),
            capabilities,
            system_calls_filtered: filtered,
            landlock,
        },
        lacks,
    })
}

/// What is in force from now on.
#[derive(Debug)]
pub struct InForce {
    confinement: Confinement,
    /// What this kernel lacks of it, in words.
    lacks: Vec<String>,
}

impl InForce {
    /// Logs it in one line, and what an operator should know beside.
    pub fn report(&self, config: &Config, file: &Path) {
        tracing::info!("confined: {self}");
        user::report(config);
        user::report_files(config, file);
    }

    /// Gives what `pepd status` says about it.
    pub fn for_status(&self) -> Confinement {
        self.confinement.clone()
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.confinement)?;
        if !self.lacks.is_empty() {
            write!(f, "; not in force: {}", self.lacks.join("; "))?;
        }
        Ok(())
    }
}
