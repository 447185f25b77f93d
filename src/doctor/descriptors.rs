//! Descriptors, ports and pipes.

use nix::sys::resource::{Resource, getrlimit};
use pepd_config::Config;

use super::finding::Finding;
use super::sysctl::{self, Sysctls};
use crate::daemon::resources;

/// The limits of a process on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The most open files, as this process could raise it.
    pub files: u64,
    /// Whether pipes may be larger than pipe-user-pages-soft allows (CAP_SYS_RESOURCE).
    pub unbounded_pipes: bool,
}

impl Limit {
    /// Reads those of this process; what systemd gives to pepd is its unit's matter.
    pub fn gather(unbounded_pipes: bool) -> Self {
        let hard = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| hard);
        Self {
            files: hard,
            unbounded_pipes,
        }
    }
}

/// Judges whether `[limits] connections` fit.
pub fn judge(limit: Limit, sysctls: &Sysctls, config: &Config) -> Vec<Finding> {
    let workers = resources::workers(config);
    let shared = resources::shares(config, workers, limit.files, 0);
    let wanted = config.limits.connections;
    let found = format!(
        "{} open files are allowed here: {} connections and {} pipes",
        limit.files, shared.connections, shared.pipes
    );
    let mut findings = vec![if shared.connections < wanted {
        let needed = 5 * u64::from(wanted) / 2;
        Finding::slow("descriptors", found)
            .because(format!(
                "[limits] connections asks for {wanted}; those beyond {} are routed, not split",
                shared.connections
            ))
            .advice(format!(
                "write LimitNOFILE={needed} or more in pepd's unit (systemctl edit pepd), or \
                 lower the key{}",
                beyond(sysctls, needed)
            ))
    } else {
        Finding::ok("descriptors", found)
    }];
    findings.extend(pipes(limit, sysctls));
    findings.extend(ports(sysctls, config));
    findings
}

/// Advises to raise fs.nr_open where it is in the way: no process may have more.
fn beyond(sysctls: &Sysctls, needed: u64) -> String {
    match sysctls.number("fs/nr_open") {
        Some(most) if most < needed => format!(
            "; and raise what any process may have: {}",
            sysctl::set("fs/nr_open", needed)
        ),
        _ => String::new(),
    }
}

/// Judges the size of pipes. Without CAP_SYS_RESOURCE those beyond this many pages shrink to two
/// pages (pipe(7)), and pepd does without them.
fn pipes(limit: Limit, sysctls: &Sysctls) -> Option<Finding> {
    const PATH: &str = "fs/pipe-user-pages-soft";
    // 256 KiB each.
    const PAGES: u64 = 64;
    let pages = sysctls.number(PATH)?;
    if limit.unbounded_pipes || pages == 0 {
        return Some(Finding::ok("pipes", "as large as pepd asks"));
    }
    Some(
        Finding::note(
            "pipes",
            format!(
                "the daemon has no CAP_SYS_RESOURCE: {} pipes of full size",
                pages / PAGES
            ),
        )
        .because(
            "those beyond would be of 8 KiB: pepd copies instead, and bulk transfers cost up to \
             twice as much CPU",
        )
        .cure(sysctl::set(PATH, 0))
        .otherwise(
            "give the service CAP_SYS_RESOURCE (config/pepd.service has the lines); a daemon \
             that root starts gives it up",
        ),
    )
}

fn ports(sysctls: &Sysctls, config: &Config) -> Option<Finding> {
    let range = sysctls.text("net/ipv4/ip_local_port_range")?;
    let range = range.split_whitespace().collect::<Vec<_>>().join("–");
    // A file whose port lies within is refused when it is read.
    Some(Finding::ok(
        "ports",
        format!(
            "port {} lies outside the ephemeral range {range}",
            config.capture.port
        ),
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::{config, level};

    #[rstest]
    #[case::the_units(65536, Level::Ok)]
    #[case::a_shells(1024, Level::Slow)]
    fn open_files(#[case] files: u64, #[case] expected: Level) {
        let limit = Limit {
            files,
            unbounded_pipes: true,
        };
        let mut config = config("");
        config.node.workers = std::num::NonZeroUsize::new(4);
        let findings = judge(limit, &Sysctls::default(), &config);
        assert_eq!(level(&findings, "descriptors"), Some(expected));
    }

    #[rstest]
    #[case(true, "16384", Level::Ok)]
    #[case(false, "0", Level::Ok)]
    #[case(false, "16384", Level::Note)]
    fn pipe_sizes(#[case] unbounded: bool, #[case] pages: &str, #[case] expected: Level) {
        let limit = Limit {
            files: 1,
            unbounded_pipes: unbounded,
        };
        let sysctls = Sysctls::of(&[("fs/pipe-user-pages-soft", pages)]);
        assert_eq!(pipes(limit, &sysctls).unwrap().level, expected);
    }
}
