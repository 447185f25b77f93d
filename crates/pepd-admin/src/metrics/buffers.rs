//! The metrics of legs with `buffer = "auto"`.

use std::fmt;

use super::collect::float;
use super::families::{Families, Family};
use crate::wire::{AutoBuffers, BufferSum, SizedBy};

/// Writes what the buffers of such legs hold, and why they are as large as they are.
pub(super) fn write(families: &mut Families<'_>, buffers: &[AutoBuffers]) -> fmt::Result {
    let both = || {
        buffers.iter().flat_map(|leg| {
            [("send", leg.send), ("receive", leg.receive)]
                .map(|(way, sum)| (vec![("leg", leg.leg.as_str()), ("way", way)], sum))
        })
    };
    type Figure = fn(&BufferSum) -> u64;
    let figures: [(Family, Figure); 2] = [
        (
            Family::bytes(
                "pepd_auto_buffer_held",
                "What the buffers of a leg with buffer = \"auto\" hold, of all live connections.",
            ),
            |sum| sum.held,
        ),
        (
            Family::bytes(
                "pepd_auto_buffer_largest",
                "What the largest of them may hold.",
            ),
            |sum| sum.largest,
        ),
    ];
    for (family, figure) in &figures {
        let values = both().map(|(labels, sum)| (labels, float(figure(&sum))));
        families.gauges(family, values)?;
    }
    families.gauges(
        &Family::new(
            "pepd_auto_buffers",
            "Such buffers, by what gives them their size: the kernel, the path, or memory that is short.",
        ),
        both().flat_map(|(labels, sum)| {
            [SizedBy::Kernel, SizedBy::Path, SizedBy::Memory].map(|why| {
                let mut labels = labels.clone();
                labels.push(("sized_by", why.name()));
                (labels, float(sum.sized_by(why)))
            })
        }),
    )
}
