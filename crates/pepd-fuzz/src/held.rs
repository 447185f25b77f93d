//! What passes while a link is gone, between hosts that nobody has looked at: packets, in any order with
//! what is heard of the link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_hold::{Act, Holder, Limits, PacketId, Report};
use pepd_packet::Rate;

const LIMITS: Limits = Limits {
    flows: 8,
    packets: 16,
    bytes: 1 << 16,
    bytes_of_one: 1 << 15,
    makes_parts: true,
};

/// The longest packet that an input holds.
const LONGEST: usize = 256;

/// A byte says what happens; a packet has its length in the next one. Each packet is decided on once, no
/// more is held than may be, and nothing in the end.
pub fn run(bytes: &[u8]) {
    let mut now = Instant::now();
    let mut holder = Holder::new(LIMITS, now);
    let (radio, lan): (Arc<str>, Arc<str>) = ("radio".into(), "lan".into());
    let (mut acts, mut given) = (Vec::new(), 0);
    let mut rest = bytes;
    while let Some((&step, behind)) = rest.split_first() {
        rest = behind;
        let report = match step % 8 {
            0 => Some(Report::GoingDown(None)),
            1 => Some(Report::GoingDown(Some(Duration::from_millis(
                100 * u64::from(step),
            )))),
            2 => Some(Report::Gone(None)),
            3 => Some(Report::Up(None)),
            4 => Some(Report::Up(Some(Rate(u64::from(step) << 8)))),
            _ => None,
        };
        if let Some(report) = report {
            holder.hear(&radio, report, now);
        } else if step % 8 == 5 {
            now += Duration::from_millis(20 * u64::from(step));
            holder.tick(now, &mut acts);
        } else if let Some((&length, behind)) = rest.split_first() {
            let length = usize::from(length).min(behind.len()).min(LONGEST);
            let (packet, behind) = behind.split_at(length);
            rest = behind;
            let legs = match step % 8 {
                6 => (Some(&radio), Some(&lan)),
                _ => (Some(&lan), Some(&radio)),
            };
            given += 1;
            holder.packet(PacketId(given), packet, legs, now, &mut acts);
        }
        let figures = holder.figures();
        let parts = usize::try_from(figures.parts_total).unwrap_or(usize::MAX);
        assert!(figures.acks + figures.packets <= LIMITS.packets.saturating_add(parts));
        assert!(figures.bytes <= LIMITS.bytes && figures.flows <= LIMITS.flows);
    }
    holder.end(&mut acts);
    let decided = |act: &Act| match act {
        Act::Release(id) | Act::Drop(id) => Some(id.0),
        Act::Send(_) => None,
    };
    let mut decided: Vec<u64> = acts.iter().filter_map(decided).collect();
    decided.sort_unstable();
    assert!(decided.into_iter().eq(1..=given));
}
