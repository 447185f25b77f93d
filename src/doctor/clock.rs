//! The clocks: what reading the time costs, and whether it is right.

use std::fs;

use super::finding::Finding;

/// The host's clocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// The clock source that the time is read from.
    pub source: Option<String>,
    /// The clock sources that it could be read from.
    pub available: String,
    /// Whether something keeps the system clock in step; none if the kernel does not tell.
    pub synchronised: Option<bool>,
}

const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";

impl Clock {
    /// Reads them.
    pub fn gather() -> Self {
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{FOLDER}/{name}")).ok()?;
            Some(text.trim().to_owned())
        };
        Self {
            source: read("current_clocksource"),
            available: read("available_clocksource").unwrap_or_default(),
            synchronised: pepd_sys::clock::synchronised().ok(),
        }
    }
}

/// Judges the clock source and the system clock.
pub fn judge(clock: &Clock) -> Vec<Finding> {
    let source = clock
        .source
        .as_deref()
        .map(|source| judge_source(source, &clock.available));
    let system = clock.synchronised.map(|is| {
        if is {
            Finding::ok("clock.synchronised", "the system clock is kept in step")
        } else {
            Finding::note(
                "clock.synchronised",
                "nothing keeps the system clock in step",
            )
            .because("the logs of several helper boxes cannot be read side by side")
            .cure("apt-get install systemd-timesyncd")
        }
    });
    source.into_iter().chain(system).collect()
}

/// Judges a clock source: some are read over a bus, in microseconds, and TCP asks for the time with
/// every packet.
fn judge_source(source: &str, available: &str) -> Finding {
    const ID: &str = "clock.source";
    const SLOW: [&str; 4] = ["hpet", "acpi_pm", "pit", "jiffies"];
    if !SLOW.contains(&source) {
        return Finding::ok(ID, format!("the time is read from {source}"));
    }
    let finding = Finding::slow(ID, format!("the time is read from {source}")).because(
        "that takes about a microsecond instead of 20 ns, and TCP asks for the time with \
         every packet: at 1 Gbit/s a tenth of a core",
    );
    match available
        .split_whitespace()
        .find(|name| !SLOW.contains(name))
    {
        Some(better) => finding.cure(format!("echo {better} > {FOLDER}/current_clocksource")),
        None => finding.advice(
            "see `dmesg | grep -i tsc` for why the kernel does not trust the TSC; on a virtual \
             machine use the hypervisor's clock",
        ),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;

    #[rstest]
    #[case("tsc", "tsc hpet", Level::Ok, false)]
    #[case("kvm-clock", "kvm-clock", Level::Ok, false)]
    #[case("arch_sys_counter", "arch_sys_counter", Level::Ok, false)]
    #[case("hpet", "tsc hpet acpi_pm", Level::Slow, true)]
    #[case("acpi_pm", "acpi_pm", Level::Slow, false)]
    fn sources(
        #[case] source: &str,
        #[case] available: &str,
        #[case] expected: Level,
        #[case] cure: bool,
    ) {
        let finding = judge_source(source, available);
        assert_eq!((finding.level, finding.cure.is_some()), (expected, cure));
    }

    #[rstest]
    #[case(Some(true), &[Level::Ok])]
    #[case(Some(false), &[Level::Note])]
    #[case(None, &[])]
    fn the_system_clock(#[case] synchronised: Option<bool>, #[case] expected: &[Level]) {
        let clock = Clock {
            synchronised,
            ..Clock::default()
        };
        let levels: Vec<_> = judge(&clock).iter().map(|finding| finding.level).collect();
        assert_eq!(levels, expected);
    }
}
