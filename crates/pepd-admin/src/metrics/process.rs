//! The process itself, by the names that every client library gives these figures.

use std::fmt;
use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use super::families::{Families, Family};

/// The directory with an entry for each of this process's descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Writes what /proc tells; what it does not tell is left out.
pub(super) fn write(families: &mut Families<'_>) -> fmt::Result {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some(stat) = Stat::read(&stat) else {
        return Ok(());
    };
    let second = clock_ticks_per_second();
    families.sums(
        &Family::seconds("process_cpu", "Processor time used, user and system."),
        [(vec![], stat.cpu_ticks / second)],
    )?;
    families.gauges(
        &Family::bytes("process_resident_memory", "Resident memory."),
        [(vec![], stat.resident_pages * page_bytes())],
    )?;
    families.gauges(
        &Family::bytes("process_virtual_memory", "Virtual memory."),
        [(vec![], stat.virtual_bytes)],
    )?;
    families.gauges(
        &Family::new("process_threads", "Threads."),
        [(vec![], stat.threads)],
    )?;
    families.gauges(
        &Family::seconds(
            "process_start_time",
            "When the process started, since the Unix epoch.",
        ),
        boot_time().map(|boot| (vec![], boot + stat.start_ticks / second)),
    )?;
    families.gauges(
        &Family::new("process_open_fds", "Open file descriptors."),
        open_descriptors()
            .and_then(|count| u32::try_from(count).ok())
            .map(|count| (vec![], count.into())),
    )
}

/// Fields of /proc/self/stat: proc_pid_stat(5).
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    threads: f64,
    start_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    fn read(line: &str) -> Option<Self> {
        // The name, in parentheses, may hold spaces and parentheses. The third field follows.
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<f64> = rest
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0.0))
            .collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns when the machine booted, seconds since the Unix epoch: proc_stat(5).
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// Returns how many descriptors this process has open; `None` where the kernel does not tell.
pub fn open_descriptors() -> Option<u64> {
    // Linux 6.2 and later tell by the size of the directory (proc_fd_getattr, fs/proc/fd.c). To list it
    // takes 5 µs for each, and as much memory of the kernel's as a small file.
    match fs::metadata(DESCRIPTORS).ok()?.len() {
        0 => listed_descriptors(),
        count => Some(count),
    }
}

fn listed_descriptors() -> Option<u64> {
    // Looking takes one itself.
    let count = fs::read_dir(DESCRIPTORS).ok()?.count().saturating_sub(1);
    u64::try_from(count).ok()
}

#[allow(clippy::cast_precision_loss, reason = "a small number")]
fn clock_ticks_per_second() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    ticks.map_or(100.0, |ticks| ticks as f64)
}

#[allow(clippy::cast_precision_loss, reason = "a small number")]
fn page_bytes() -> f64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.map_or(4096.0, |bytes| bytes as f64)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::{DESCRIPTORS, Stat, listed_descriptors, open_descriptors};

    #[test]
    fn descriptors_are_counted_by_either_way() {
        let before = open_descriptors().unwrap();
        let held: Vec<_> = (0..300).map(|_| File::open("/dev/null").unwrap()).collect();
        // Other tests open and close some, too.
        for count in [open_descriptors(), listed_descriptors()] {
            let count = count.unwrap_or_else(|| panic!("no {DESCRIPTORS}"));
            assert!((300..before + 600).contains(&count), "{before}, {count}");
        }
        drop(held);
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let line =
            "4711 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 9 18 98765 4096000 300";
        let stat = Stat {
            cpu_ticks: 300.0,
            threads: 9.0,
            start_ticks: 98765.0,
            virtual_bytes: 4_096_000.0,
            resident_pages: 300.0,
        };
        assert_eq!(Stat::read(line), Some(stat));
        assert_eq!(Stat::read("4711 (short) S 1 2"), None);
    }
}
