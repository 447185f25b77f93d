//! `[limits] memory` against the host's.

use pepd_config::{Config, Size};

use super::finding::Finding;
use super::sysctl::{self, Sysctls};

/// The part of the host's memory that the limit should leave to everything else: half.
const OF_THE_HOST: u64 = 2;

/// Gives the host's memory in bytes; none where the kernel does not tell.
pub fn gather() -> Option<Size> {
    let info = nix::sys::sysinfo::sysinfo().ok()?;
    Some(Size(info.ram_total()))
}

/// Judges the limit, if there is one.
pub fn judge(sysctls: &Sysctls, host: Option<Size>, config: &Config) -> Option<Finding> {
    const ID: &str = "memory";
    const PATH: &str = "net/ipv4/tcp_mem";
    const PAGE: u64 = 4096;
    let limit = config.limits.memory?;
    if let Some(host) = host.filter(|host| limit.0 > host.0 / OF_THE_HOST) {
        let host_mib = host.0 >> 20;
        return Some(
            Finding::slow(
                ID,
                format!("[limits] memory is {limit}, and the host has {host_mib} MiB"),
            )
            .because("the host runs out of memory before the limit is reached")
            .advice(format!(
                "write memory = \"{}MiB\" or less",
                host_mib / OF_THE_HOST
            )),
        );
    }
    let found = format!("connections may hold {limit} altogether");
    let pressure = sysctls.triple(PATH).map(|[_, pressure, _]| pressure);
    Some(match pressure {
        Some(pressure) if limit.0 > pressure.saturating_mul(PAGE) => {
            let pages = limit.0.div_ceil(PAGE);
            Finding::note(ID, found)
                .because(format!(
                    "the kernel shrinks everybody's windows from {} MiB on, before the limit is \
                     reached",
                    (pressure * PAGE) >> 20
                ))
                .cure(sysctl::set(
                    PATH,
                    format!("{} {pages} {}", pages / 4 * 3, pages / 2 * 3),
                ))
        }
        _ => Finding::ok(ID, found),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::config;

    #[rstest]
    #[case::none(None, None)]
    #[case::fits(Some(64), Some(Level::Ok))]
    #[case::more_than_tcp_may(Some(256), Some(Level::Note))]
    #[case::more_than_the_host_has(Some(4096), Some(Level::Slow))]
    fn against_the_host(#[case] mebibytes: Option<u64>, #[case] expected: Option<Level>) {
        let mut config = config("");
        config.limits.memory = mebibytes.map(|size| Size(size << 20));
        let judge = |value: &str| {
            let sysctls = Sysctls::of(&[("net/ipv4/tcp_mem", value)]);
            judge(&sysctls, Some(Size(2 << 30)), &config)
        };
        let finding = judge("24000 32768 48000");
        assert_eq!(finding.as_ref().map(|it| it.level), expected, "{finding:?}");
        if let Some(cure) = finding.and_then(|finding| finding.cure) {
            let value = cure.split('"').nth(1).unwrap();
            assert_eq!(judge(value).unwrap().level, Level::Ok, "{cure}");
        }
    }
}
