//! `[limits]`.

use pepd_packet::SourcePrefix;

use crate::bounds;
use crate::keys;
use crate::model::Limits;
use crate::report::Problems;
use crate::section::Section;

const CONNECTIONS: u32 = 8000;
const CONNECTIONS_PER_SOURCE: u32 = 1000;
const PENDING: u32 = 1024;

/// Reads the limits; those that the file does not give have defaults.
pub(super) fn limits(root: &Section<'_>, problems: &mut Problems) -> Limits {
    let section = root.table(problems, "limits", keys::LIMITS);
    let mut read = |key, bounds| {
        section
            .as_ref()?
            .optional(problems, key, |field| field.number(bounds))
    };
    let connections = read("connections", bounds::CONNECTIONS).unwrap_or(CONNECTIONS);
    Limits {
        connections,
        connections_per_source: read("connections_per_source", bounds::CONNECTIONS)
            .unwrap_or(CONNECTIONS_PER_SOURCE.min(connections)),
        pending: read("pending", bounds::PENDING).unwrap_or(PENDING),
        memory: section.as_ref().and_then(|section| {
            section.optional(problems, "memory", |field| field.size(bounds::MEMORY))
        }),
        ipv6_source_prefix: section
            .as_ref()
            .and_then(|section| {
                section.optional(problems, "ipv6_source_prefix", |field| {
                    field.number(bounds::SOURCE_PREFIX).map(SourcePrefix)
                })
            })
            .unwrap_or(SourcePrefix::NETWORK),
    }
}
