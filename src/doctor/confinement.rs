//! What `pepd run` would be confined by here: its user, few system calls, files that are read-only.

use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use pepd_config::Config;

use super::finding::Finding;
use crate::daemon::privileges::bar::Bar;
use crate::daemon::privileges::user::{self, Account};
use crate::daemon::privileges::{are_filtered_here, landlock_version};

/// What this host has for it.
#[derive(Debug)]
pub struct Confinement {
    /// The user that root's daemon becomes; none where it stays who it is. Or why there is none.
    account: Result<Option<Account>, String>,
    is_root: bool,
    /// The configuration file, and what keeps that user from reading it again.
    file: PathBuf,
    bar: Option<Bar>,
    filter: bool,
    landlock: Option<u32>,
}

impl Confinement {
    /// Reads it, for `run` as it would be started by whoever asks.
    pub fn gather(config: &Config, file: &Path) -> Self {
        let account = user::wanted(config).map_err(|failure| failure.to_string());
        Self {
            bar: match &account {
                Ok(Some(account)) => Bar::to(account, file),
                _ => None,
            },
            account,
            is_root: geteuid().is_root(),
            file: file.to_owned(),
            filter: are_filtered_here(),
            landlock: landlock_version(),
        }
    }
}

/// Judges what of it is missing.
pub fn judge(facts: &Confinement) -> Vec<Finding> {
    vec![user(facts), reload(facts), filter(facts), landlock(facts)]
}

fn user(facts: &Confinement) -> Finding {
    const ID: &str = "user";
    match &facts.account {
        Err(why) => Finding::stop(ID, why.trim_start_matches("pepd: ").to_owned()),
        Ok(None) if facts.is_root => {
            Finding::note(ID, "`pepd run` stays root, as [node] user asks")
                .because("whoever takes it over owns what root owns")
                .advice(format!(
                    "leave the key out, and give pepd a user of its own: {}",
                    user::cure()
                ))
        }
        Ok(None) => Finding::ok(ID, "`pepd run` stays the user that starts it"),
        Ok(Some(account)) if user::is_shared(&account.name) => Finding::note(
            ID,
            "`pepd run` becomes `nobody`: this host has no user `pepd`",
        )
        .because("programs of other services may be `nobody`, too, and may end it")
        .cure(user::cure()),
        Ok(Some(account)) => Finding::ok(ID, format!("`pepd run` becomes `{}`", account.name)),
    }
}

fn reload(facts: &Confinement) -> Finding {
    const ID: &str = "reload";
    match (&facts.account, &facts.bar) {
        (Ok(Some(account)), Some(bar)) => Finding::note(
            ID,
            format!(
                "`{}` cannot read {}{bar}",
                account.name,
                facts.file.display(),
            ),
        )
        .because("the daemon is that user by then: a reload is refused, and changes nothing")
        .advice(bar.cure(&account.name)),
        _ => Finding::ok(ID, "the daemon can read its configuration again"),
    }
}

fn filter(facts: &Confinement) -> Finding {
    const ID: &str = "seccomp";
    if facts.filter {
        Finding::ok(ID, "system calls that pepd has no use for are refused")
    } else {
        Finding::note(
            ID,
            "this kernel cannot filter system calls (CONFIG_SECCOMP_FILTER)",
        )
        .because("who takes the daemon over may then try each of them on the kernel")
    }
}

fn landlock(facts: &Confinement) -> Finding {
    const ID: &str = "landlock";
    match facts.landlock {
        Some(version) => Finding::ok(
            ID,
            format!("version {version}: the daemon's files are read-only"),
        ),
        None => Finding::note(ID, "this kernel has no Landlock")
            .because("the daemon then writes and executes what its user may")
            .advice(
                "a kernel with CONFIG_SECURITY_LANDLOCK, and `landlock` in its parameter lsm=; \
                 config/pepd.service has systemd do much the same",
            ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::level;

    fn facts() -> Confinement {
        Confinement {
            account: Ok(None),
            is_root: false,
            file: PathBuf::from("/etc/pepd/pepd.toml"),
            bar: None,
            filter: true,
            landlock: Some(2),
        }
    }

    #[test]
    fn what_is_missing_is_named_and_stops_nothing() {
        let findings = judge(&facts());
        assert!(findings.iter().all(|finding| finding.level == Level::Ok));
        let findings = judge(&Confinement {
            is_root: true,
            filter: false,
            landlock: None,
            ..facts()
        });
        for id in ["user", "seccomp", "landlock"] {
            assert_eq!(level(&findings, id), Some(Level::Note), "{id}");
        }
        let findings = judge(&Confinement {
            account: Err("pepd: this host has no user `x`".to_owned()),
            ..facts()
        });
        assert_eq!(level(&findings, "user"), Some(Level::Stop));
    }
}
