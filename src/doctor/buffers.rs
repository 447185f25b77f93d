//! Socket buffers against bandwidth × round-trip time.

use pepd_config::{Buffer, Config, Leg, Rate, Size};

use super::finding::Finding;
use super::sysctl::{self, Sysctls};

/// The rate by which a leg is judged if the file gives none for it.
const DEFAULT_RATE: Rate = Rate(100_000_000);

/// The round trip that a leg's buffers should cover at its rate: a continent's, in milliseconds.
const LONG_RTT_MS: u64 = 100;

/// The least maximum that is advised where the kernel's is too small, in bytes.
const ROOMY_MAXIMUM: u64 = 32 << 20;

/// The number of connections below which full buffers must not fill TCP's memory.
const MIN_FULL_BUFFERS: u64 = 32;

/// Gives one finding per leg and direction, and one about TCP's memory.
pub fn judge(sysctls: &Sysctls, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for leg in &config.legs {
        match leg.buffer {
            Some(Buffer::Size(buffer)) => findings.push(fixed(leg, buffer)),
            Some(Buffer::Auto) => findings.extend(auto(sysctls, leg)),
            None => {
                findings.extend(tuned(sysctls, leg, "buffer.receive", "tcp_rmem"));
                findings.extend(tuned(sysctls, leg, "buffer.send", "tcp_wmem"));
                findings.extend(growing(sysctls, leg));
            }
        }
    }
    findings.extend(memory(sysctls, config));
    findings
}

/// Gives the longest round trip, in milliseconds, that `bytes` in flight fill at `rate`.
fn covered_rtt_ms(bytes: u64, rate: Rate) -> u64 {
    u64::try_from(u128::from(bytes) * 8 * 1000 / u128::from(rate.0.max(1))).unwrap_or(u64::MAX)
}

/// Judges a leg's own `buffer`, which is forced past rmem_max and wmem_max (SO_RCVBUFFORCE), and
/// which the kernel doubles for its own bookkeeping: all of it is the connection's.
fn fixed(leg: &Leg, buffer: Size) -> Finding {
    const ID: &str = "buffer";
    let rate = leg.rate.unwrap_or(DEFAULT_RATE);
    let time = covered_rtt_ms(buffer.0, rate);
    let found = format!("{buffer}: fills {rate}/s up to a round trip of {time} ms");
    let finding = if leg.rate.is_some() && time < LONG_RTT_MS {
        let wanted = Size((rate.0 / 8 * 600 / 1000).next_power_of_two());
        Finding::note(ID, found)
            .because(
                "a connection has no more in flight than its buffer: over a longer path it \
                 cannot reach the leg's own rate",
            )
            .advice(format!(
                "if the path is longer, raise `buffer` (a satellite's 600 ms need {wanted} at \
                 {rate}/s)"
            ))
    } else {
        Finding::ok(ID, found)
    };
    finding.about(format!("leg {}", leg.name))
}

/// Judges `buffer = "auto"`: what is sent is bounded by memory alone, and what is received by the window
/// that a connection can ever tell of, whose scale the kernel takes from tcp_rmem and rmem_max
/// (tcp_select_initial_window, net/ipv4/tcp_output.c).
fn auto(sysctls: &Sysctls, leg: &Leg) -> Option<Finding> {
    const ID: &str = "buffer.window";
    const RMEM: &str = "net/ipv4/tcp_rmem";
    const LARGEST: u64 = 65_535;
    let [least, default, most] = sysctls.triple(RMEM)?;
    let space = most.max(sysctls.number("net/core/rmem_max").unwrap_or(0));
    let scale = u64::from(space.max(1).ilog2().saturating_sub(15).min(14));
    let rate = leg.rate.unwrap_or(DEFAULT_RATE);
    let time = covered_rtt_ms(LARGEST << scale, rate);
    let found = format!(
        "auto: windows grow up to {} KiB: fills {rate}/s up to a round trip of {time} ms",
        (LARGEST << scale) >> 10
    );
    let finding = if time < LONG_RTT_MS {
        let needed = (rate.0 / 8 * LONG_RTT_MS / 1000).next_power_of_two();
        let wanted = needed.max(ROOMY_MAXIMUM);
        Finding::slow(ID, found)
            .because(
                "how large a window may become is settled in the handshake, by the third number of \
                 tcp_rmem; what is sent needs no sysctl",
            )
            .cure(sysctl::set(RMEM, format!("{least} {default} {wanted}")))
    } else {
        Finding::ok(ID, found)
    };
    Some(finding.about(format!("leg {}", leg.name)))
}

/// Judges a buffer that the kernel tunes: it grows up to the third number, about half of which is
/// payload (tcp_adv_win_scale, Documentation/networking/ip-sysctl.rst).
fn tuned(sysctls: &Sysctls, leg: &Leg, id: &'static str, name: &str) -> Option<Finding> {
    let path = format!("net/ipv4/{name}");
    let [least, default, most] = sysctls.triple(&path)?;
    let rate = leg.rate.unwrap_or(DEFAULT_RATE);
    let time = covered_rtt_ms(most / 2, rate);
    let found = format!(
        "grows up to {} ({name}): fills {rate}/s up to a round trip of {time} ms",
        Size(most)
    );
    let finding =
        if time < LONG_RTT_MS {
            let needed = (rate.0 / 8 * LONG_RTT_MS / 1000 * 2).next_power_of_two();
            let wanted = needed.max(ROOMY_MAXIMUM);
            Finding::slow(id, found)
            .because(
                "a connection has no more in flight than its buffer holds: the leg cannot fill a \
                 longer path",
            )
            .cure(sysctl::set(&path, format!("{least} {default} {wanted}")))
            .otherwise(format!("give the leg a `buffer` of its own in [leg.{}]", leg.name))
        } else {
            Finding::ok(id, found)
        };
    Some(finding.about(format!("leg {}", leg.name)))
}

/// Judges autotuning, without which the receive buffer stays at the second number.
fn growing(sysctls: &Sysctls, leg: &Leg) -> Option<Finding> {
    const PATH: &str = "net/ipv4/tcp_moderate_rcvbuf";
    (sysctls.number(PATH) == Some(0)).then(|| {
        Finding::slow("buffer.autotuning", format!("{} is 0", sysctl::name(PATH)))
            .about(format!("leg {}", leg.name))
            .because("receive buffers do not grow: tcp_rmem's second number is all that there is")
            .cure(sysctl::set(PATH, 1))
    })
}

/// Judges TCP's memory: above the second number of tcp_mem the kernel shrinks windows, above the
/// third it drops (tcp(7)).
fn memory(sysctls: &Sysctls, config: &Config) -> Option<Finding> {
    const PATH: &str = "net/ipv4/tcp_mem";
    const ID: &str = "buffer.memory";
    const PAGE: u64 = 4096;
    let [_, pressure, _] = sysctls.triple(PATH)?;
    // In the worst case both legs have a direction's buffer full, with as much of bookkeeping.
    let largest = config
        .legs
        .iter()
        .filter_map(|leg| leg.buffer?.size())
        .max();
    let largest = largest.map(|buffer| 2 * buffer.0);
    let tuned = sysctls.triple("net/ipv4/tcp_rmem").map(|[.., most]| most);
    let each = largest.or(tuned)?.max(PAGE);
    let full = pressure * PAGE / each;
    let found = format!(
        "TCP may take {} MiB in all: {full} full buffers of {} MiB",
        (pressure * PAGE) >> 20,
        each >> 20
    );
    Some(if full < MIN_FULL_BUFFERS {
        let pages = MIN_FULL_BUFFERS * each / PAGE;
        Finding::note(ID, found)
            .because(
                "beyond it the kernel shrinks everybody's windows, and connections slow down \
                 together",
            )
            .cure(sysctl::set(
                PATH,
                format!("{} {pages} {}", pages / 4 * 3, pages / 2 * 3),
            ))
            .advice("if the host has that much memory; otherwise lower `buffer`")
    } else {
        Finding::ok(ID, found)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::config;

    const RMEM: &str = "net/ipv4/tcp_rmem";

    fn leg(rate: Option<u64>) -> Leg {
        let mut leg = config("").legs.remove(0);
        leg.rate = rate.map(Rate);
        leg
    }

    #[rstest]
    #[case::bandwidth_times_delay(3_750_000, 50_000_000, 600)]
    #[case::nothing(0, 1, 0)]
    #[case::no_overflow(u64::MAX, 1, u64::MAX)]
    fn what_a_buffer_covers(#[case] bytes: u64, #[case] rate: u64, #[case] milliseconds: u64) {
        assert_eq!(covered_rtt_ms(bytes, Rate(rate)), milliseconds);
    }

    #[rstest]
    #[case::debian("4096 131072 6291456", None, Level::Ok)]
    #[case::small("4096 131072 262144", None, Level::Slow)]
    #[case::small_for_its_rate("4096 131072 6291456", Some(1_000_000_000), Level::Slow)]
    #[case::small_is_enough("4096 131072 262144", Some(5_000_000), Level::Ok)]
    fn autotuning(#[case] value: &str, #[case] rate: Option<u64>, #[case] expected: Level) {
        let sysctls = Sysctls::of(&[(RMEM, value)]);
        let finding = tuned(&sysctls, &leg(rate), "buffer.receive", "tcp_rmem").unwrap();
        assert_eq!(finding.level, expected, "{finding:?}");
        // What the cure sets is enough.
        if let Some(cure) = finding.cure {
            let value = cure.split('"').nth(1).unwrap();
            let cured = Sysctls::of(&[(RMEM, value)]);
            let finding = tuned(&cured, &leg(rate), "buffer.receive", "tcp_rmem").unwrap();
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }

    #[rstest]
    #[case::debian("4096 131072 6291456", None, Level::Ok)]
    #[case::small("4096 131072 262144", None, Level::Slow)]
    #[case::small_is_enough("4096 131072 262144", Some(10_000_000), Level::Ok)]
    #[case::small_for_its_rate("4096 131072 6291456", Some(1_000_000_000), Level::Slow)]
    fn windows_of_auto(#[case] value: &str, #[case] rate: Option<u64>, #[case] expected: Level) {
        let finding = auto(&Sysctls::of(&[(RMEM, value)]), &leg(rate)).unwrap();
        assert_eq!(finding.level, expected, "{finding:?}");
        if let Some(cure) = finding.cure {
            let value = cure.split('"').nth(1).unwrap();
            let finding = auto(&Sysctls::of(&[(RMEM, value)]), &leg(rate)).unwrap();
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }

    #[rstest]
    #[case::enough(Some(48_000_000), 8 << 20, Level::Ok)]
    #[case::short(Some(48_000_000), 256 << 10, Level::Note)]
    #[case::no_rate_no_judgement(None, 256 << 10, Level::Ok)]
    fn a_leg_of_its_own(#[case] rate: Option<u64>, #[case] buffer: u64, #[case] expected: Level) {
        let finding = fixed(&leg(rate), Size(buffer));
        assert_eq!(finding.level, expected, "{finding:?}");
    }

    #[rstest]
    #[case::a_big_host("380000 506000 760000", Level::Ok)]
    #[case::a_small_one("11000 15000 22000", Level::Note)]
    fn tcp_memory(#[case] value: &str, #[case] expected: Level) {
        let mut config = config("");
        config.legs[0].buffer = Some(Buffer::Size(Size(8 << 20)));
        let judge = |value: &str| memory(&Sysctls::of(&[("net/ipv4/tcp_mem", value)]), &config);
        let finding = judge(value).unwrap();
        assert_eq!(finding.level, expected, "{finding:?}");
        if let Some(cure) = finding.cure {
            let value = cure.split('"').nth(1).unwrap();
            assert_eq!(judge(value).unwrap().level, Level::Ok, "{cure}");
        }
    }
}
