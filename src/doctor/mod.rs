//! `pepd doctor`: what on this host would stop or slow a helper box, and what cures it.
//!
//! Facts are gathered, then judged, then rendered: each probe below has its facts, which it
//! reads, and a `judge`, which reads nothing and so can be tested with any facts.

mod buffers;
mod capture;
mod clock;
mod confinement;
pub mod congestion;
mod conntrack;
mod descriptors;
mod finding;
#[cfg(test)]
mod fixture;
mod forwarding;
mod interfaces;
mod links;
mod memory;
mod modules;
mod neighbors;
mod pacing;
mod render;
mod source_validation;
mod sysctl;
mod tcp;
pub mod tunnels;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use pepd_config::{Config, Size};

use self::capture::Capture;
use self::clock::Clock;
use self::confinement::Confinement;
use self::congestion::OwnControl;
use self::descriptors::Limit;
use self::finding::{Finding, Level, worst};
use self::links::Links;
use self::modules::Modules;
use self::neighbors::Neighbors;
use self::sysctl::Sysctls;
use crate::cli::Doctor;
use crate::config_file;
use crate::daemon::privileges::{self, Privileges};
use crate::exit::{self, Failure, Result};
use crate::runtime;
use crate::ui::output::{has_colours, print};

/// Looks at the host and prints the findings. Changes nothing.
pub fn doctor(options: &Doctor) -> Result<ExitCode> {
    let config = config_file::read(&options.file)?;
    let runtime = runtime::one_thread()?;
    let facts = runtime.block_on(Facts::gather(&config, &options.file.path));
    let findings = facts.judge(&config);
    let node = &config.node.name;
    let text = if options.json {
        render::json(node, &findings).map_err(|error| Failure::internal("write JSON", error))?
    } else {
        render::text(node, &findings, has_colours(&io::stdout()))
    };
    print(text.as_bytes())?;
    Ok(match worst(&findings) {
        Level::Stop => ExitCode::from(exit::FOUND),
        Level::Slow | Level::Note | Level::Ok => ExitCode::SUCCESS,
    })
}

/// All that the findings are judged by.
struct Facts {
    sysctls: Sysctls,
    modules: Modules,
    own_control: OwnControl,
    links: Links,
    neighbors: Neighbors,
    clock: Clock,
    privileges: Privileges,
    confinement: Confinement,
    limit: Limit,
    memory: Option<Size>,
    capture: Capture,
}

impl Facts {
    async fn gather(config: &Config, file: &Path) -> Self {
        let privileges = privileges::gather();
        Self {
            sysctls: Sysctls::gather(),
            modules: Modules::gather(),
            own_control: OwnControl::gather(config),
            links: Links::gather(config).await,
            neighbors: Neighbors::gather(config).await,
            clock: Clock::gather(),
            limit: Limit::gather(privileges.unbounded_pipes),
            memory: memory::gather(),
            privileges,
            confinement: Confinement::gather(config, file),
            capture: Capture::gather(config).await,
        }
    }

    fn judge(self, config: &Config) -> Vec<Finding> {
        let Self {
            sysctls,
            modules,
            links,
            ..
        } = &self;
        let mut findings = vec![privileges_finding(&self.privileges)];
        findings.extend(confinement::judge(&self.confinement));
        findings.extend(forwarding::judge(sysctls, links, config));
        findings.extend(source_validation::judge(sysctls, links, config));
        findings.extend(tunnels::judge(modules, config));
        findings.extend(congestion::judge(
            sysctls,
            modules,
            &self.own_control,
            config,
        ));
        findings.extend(buffers::judge(sysctls, config));
        findings.extend(memory::judge(sysctls, self.memory, config));
        findings.extend(pacing::judge(links, modules, config));
        findings.extend(tcp::judge(sysctls, config));
        findings.extend(interfaces::judge(links, config));
        findings.extend(neighbors::judge(&self.neighbors, sysctls, config));
        findings.extend(conntrack::judge(sysctls, config));
        findings.extend(descriptors::judge(self.limit, sysctls, config));
        findings.extend(clock::judge(&self.clock));
        findings.extend(capture::judge(self.capture, config));
        findings
    }
}

fn privileges_finding(privileges: &Privileges) -> Finding {
    const ID: &str = "capabilities";
    let list = |names: &[String]| names.join(", ");
    if !privileges.needed.is_empty() {
        Finding::stop(ID, format!("{} is missing", list(&privileges.needed)))
            .because("`pepd run` ends without; and the doctor cannot look at everything")
            .advice("run as root; config/pepd.service gives pepd what it needs")
    } else if !privileges.wanted.is_empty() {
        Finding::note(ID, format!("{} is missing", list(&privileges.wanted)))
            .because(
                "CAP_NET_BIND_SERVICE is for clients that use a port below 1024 (NFS), which are \
                 served from another one without; CAP_NET_RAW to ask peers whether they are \
                 there, and to have connections go on as soon as their link is back",
            )
            .advice("config/pepd.service gives pepd both")
    } else {
        Finding::ok(ID, "all that pepd uses are there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities() {
        let judge = |needed: &[&str], wanted: &[&str]| {
            let own = |names: &[&str]| names.iter().map(ToString::to_string).collect();
            let privileges = Privileges {
                needed: own(needed),
                wanted: own(wanted),
                unbounded_pipes: false,
            };
            privileges_finding(&privileges).level
        };
        assert_eq!(judge(&[], &[]), Level::Ok);
        assert_eq!(judge(&[], &["CAP_NET_RAW"]), Level::Note);
        assert_eq!(judge(&["CAP_NET_ADMIN"], &["CAP_NET_RAW"]), Level::Stop);
    }
}
