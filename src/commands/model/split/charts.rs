//! The curves, as a figure has them.

use super::super::figure::Chart;
use super::{Place, Report};

/// Returns the two curves, with where the path is on them.
pub(super) fn of(report: &Report, loss: f64) -> [Chart; 2] {
    let lines = |places: &[Place]| {
        let line = |of: fn(&Place) -> f64| places.iter().map(|it| (it.at, of(it))).collect();
        vec![
            ("with a box", line(|it| it.split)),
            ("without", line(|it| it.unsplit)),
        ]
    };
    let within = |here: f64, places: &[Place]| {
        let reaches = places.first().is_some_and(|first| first.at <= here)
            && places.last().is_some_and(|last| here <= last.at);
        reaches.then_some(here)
    };
    [
        Chart {
            title: "Throughput over the loss of the leg to the receiver".to_owned(),
            over: "loss of a packet",
            place: |loss| format!("{} %", loss * 100.0),
            is_log: true,
            lines: lines(&report.over_loss),
            names: Vec::new(),
            here: within(loss, &report.over_loss),
        },
        Chart {
            title: "Throughput over the box's buffer".to_owned(),
            over: "buffer",
            place: |bytes| format!("{:.0} kB", bytes / 1000.0),
            is_log: true,
            lines: lines(&report.over_buffer),
            names: Vec::new(),
            here: report.buffer.and_then(|it| within(it, &report.over_buffer)),
        },
    ]
}
