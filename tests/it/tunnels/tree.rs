//! Five campuses on four helper boxes in a tree: box h joins x and y, and z is behind y.

use anyhow::Result;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Fleet, require};

use super::running::Running;

const BOXES: [&str; 4] = ["h", "x", "y", "z"];
const CAMPUSES: [(&str, &str); 5] = [
    ("c1", "x"),
    ("c2", "h"),
    ("c3", "y"),
    ("c4", "z"),
    ("c5", "z"),
];

#[test]
fn every_pair_talks_and_is_split_at_exactly_the_boxes_on_its_way() -> Result<()> {
    require!(root, tunnels);
    let mut fleet = Fleet::describe();
    for name in BOXES {
        fleet = fleet.helper(name);
    }
    fleet = fleet.path("h", "x").path("h", "y").path("y", "z");
    for (campus, behind) in CAMPUSES {
        fleet = fleet.campus(campus, behind);
    }
    let fleet = fleet.build()?;
    let running = Running::with_boxes(fleet, &BOXES, Family::V4, &Family::BOTH, |config| config)?;
    let fleet = &running.fleet;
    for family in Family::BOTH {
        for (from, _) in CAMPUSES {
            // One way with IPv4, the other with IPv6.
            let to = CAMPUSES.map(|(to, _)| to);
            for to in to.into_iter().filter(|to| match family {
                Family::V4 => from < *to,
                Family::V6 => from > *to,
            }) {
                let before = running.split()?;
                let address = fleet.address(to, family)?;
                Pair::open(fleet.host(from), fleet.host(to), address)?.exchange(2000)?;
                let way = fleet.way(from, to)?;
                let expected: Vec<bool> = BOXES
                    .iter()
                    .map(|name| way.iter().any(|on| on == name))
                    .collect();
                assert_eq!(
                    running.split_since(&before)?,
                    expected,
                    "{from} to {to}: {way:?}"
                );
            }
        }
    }
    running.finish()
}
