//! What the API says of the counters: each with its name and what it means.

use pepd_telemetry::{Counter, Counters, CountersBy, HeldSynFailure, Reason, UnsplitReason};

use crate::wire::CountedReason;

impl CountedReason {
    /// Lists everything counted, in the order in which it happens to a connection.
    pub fn list(counters: &Counters) -> Vec<Self> {
        let connections = connections(counters).into_iter();
        let bytes = bytes(counters).into_iter();
        let of_counter =
            |(name, counter, meaning): Named<'_>| Self::new(name, counter.get(), meaning);
        connections
            .map(of_counter)
            .chain(by_reason(&counters.held_syns_failed, failure_name))
            .chain(by_reason(&counters.unsplit, unsplit_name))
            .chain(bytes.map(of_counter))
            .collect()
    }

    fn new(name: impl Into<String>, count: u64, meaning: &str) -> Self {
        Self {
            name: name.into(),
            count,
            meaning: meaning.to_owned(),
        }
    }
}

/// A counter, its name before it and what it means behind.
type Named<'a> = (&'static str, &'a Counter, &'static str);

fn connections(counters: &Counters) -> [Named<'_>; 12] {
    [
        (
            "accepted",
            &counters.accepted,
            "connections accepted from captured traffic",
        ),
        (
            "closed",
            &counters.closed,
            "ended with a FIN each way, everything delivered",
        ),
        (
            "client_failed",
            &counters.client_failed,
            "ended with an error on the client leg",
        ),
        (
            "upstream_failed",
            &counters.upstream_failed,
            "ended with an error on the upstream leg",
        ),
        (
            "cut",
            &counters.cut,
            "ended by pepd: the drain time was over, or nothing moved any more",
        ),
        (
            "unreachable",
            &counters.unreachable,
            "reset: their destination could not be reached",
        ),
        (
            "other_port",
            &counters.other_port,
            "upstream legs from another port than the client's",
        ),
        (
            "refused",
            &counters.refused,
            "refused: they would have led to this host itself",
        ),
        (
            "source_full",
            &counters.source_full,
            "reset: their source had as many as it may, and they could not be routed",
        ),
        (
            "accept_pauses",
            &counters.accept_pauses,
            "accepting paused: no descriptors",
        ),
        (
            "copied_without_pipe",
            &counters.copied_without_pipe,
            "data copied: no pipe, or no memory for splice",
        ),
        ("held", &counters.held, "flows whose SYN was held"),
    ]
}

fn bytes(counters: &Counters) -> [Named<'_>; 2] {
    [
        (
            "bytes_up",
            &counters.bytes_up,
            "bytes from clients delivered to upstream legs",
        ),
        (
            "bytes_down",
            &counters.bytes_down,
            "bytes from upstream legs delivered to clients",
        ),
    ]
}

fn by_reason<R: Reason>(
    counters: &CountersBy<R>,
    name: impl Fn(R) -> String,
) -> impl Iterator<Item = CountedReason> {
    let counts = counters.iter();
    counts.map(move |(reason, count)| CountedReason::new(name(reason), count, reason.help()))
}

fn failure_name(failure: HeldSynFailure) -> String {
    match failure {
        HeldSynFailure::Refused => "refusals_passed_on".to_owned(),
        HeldSynFailure::LinkGone => "refused_link_gone".to_owned(),
        HeldSynFailure::Unreachable => "unreachable_passed_on".to_owned(),
        HeldSynFailure::Unanswered | HeldSynFailure::Unclaimed => failure.name().to_owned(),
    }
}

fn unsplit_name(reason: UnsplitReason) -> String {
    format!("let_through_{}", reason.name())
}
