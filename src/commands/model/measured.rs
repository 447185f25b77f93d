//! The legs of a campus pair as a running daemon measures them.

use pepd_admin::wire::{FlowList, FlowQuery, PairLeg, PairSnapshot, Status};
use pepd_model::law::{Control, Leg, Loss};

use super::doubt::Sent;
use crate::cli::Target;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::exit::{Failure, Result};
use crate::leg_spec;

/// A leg, and what was sent when it was measured; none where somebody says how it is.
pub type Known = (Leg, Option<Sent>);

/// Asks a daemon for the legs by which data goes from one campus to another, `A:B`, but for those that are given.
pub fn legs(target: &Target, pair: &str, given: [Option<Leg>; 2]) -> Result<[Known; 2]> {
    let [from, to] = ends(pair).map_err(Failure::usage)?;
    let client = Client::new(target)?;
    let status: Status = client.get(endpoint::STATUS)?;
    let query = FlowQuery {
        campus: Some(from.to_owned()),
        limit: Some(FlowQuery::MOST),
        ..FlowQuery::default()
    };
    let flows: FlowList = client.get(&endpoint::flows(&query))?;
    of(&status.pairs, &flows, [from, to], given).map_err(Failure::unavailable)
}

fn ends(pair: &str) -> std::result::Result<[&str; 2], String> {
    let names: Vec<_> = pair.split(':').collect();
    match names[..] {
        [from, to] if !from.is_empty() && !to.is_empty() => Ok([from, to]),
        _ => Err(format!(
            "`{pair}` is no pair of campuses; write one as A:B, for data from A to B"
        )),
    }
}

fn of(
    pairs: &[PairSnapshot],
    flows: &FlowList,
    [from, to]: [&str; 2],
    given: [Option<Leg>; 2],
) -> std::result::Result<[Known; 2], String> {
    let matching = pairs.iter().filter_map(|pair| {
        let ends = (pair.client_campus.as_str(), pair.server_campus.as_str());
        if ends == (from, to) {
            Some((pair.accepted, [&pair.client_leg, &pair.upstream_leg]))
        } else if ends == (to, from) {
            Some((pair.accepted, [&pair.upstream_leg, &pair.client_leg]))
        } else {
            None
        }
    });
    let Some((_, legs)) = matching.max_by_key(|(accepted, _)| *accepted) else {
        return Err(format!(
            "the daemon has seen no connection between {from} and {to}; `pepd status` lists the pairs"
        ));
    };
    let mut found = [(Leg::new(0.0), None); 2];
    let options = ["--in", "--out"];
    for ((leg, measured), (given, option)) in
        found.iter_mut().zip(legs).zip(given.iter().zip(options))
    {
        *leg = match given {
            Some(given) => (*given, None),
            None => read(measured, flows)
                .map_err(|error| format!("{error}; or say how it is, with {option} beside --of"))?,
        };
    }
    Ok(found)
}

/// Makes a leg of what is measured: what the box has sent again over it, both ways alike, and the round trip
/// with the queues that there were.
fn read(measured: &PairLeg, flows: &FlowList) -> std::result::Result<Known, String> {
    let name = &measured.profile;
    let rtt = measured.rtt.filter(|rtt| *rtt > 0.0).ok_or_else(|| {
        format!("leg {name} has no live connection to take the round trip from: ask again when it has one")
    })?;
    let legs = flows
        .flows
        .iter()
        .flat_map(|flow| [&flow.client_leg, &flow.upstream_leg]);
    let control = legs
        .filter(|leg| leg.profile == *name)
        .find_map(|leg| leg.congestion.as_deref());
    let control = match control {
        None => Control::default(),
        Some(control) => {
            leg_spec::control(control).map_err(|error| format!("leg {name}: {error}"))?
        }
    };
    let loss = measured.retransmitted.unwrap_or(0.0);
    let sent = Sent::new(measured.sent_bytes, loss);
    if let Some(refusal) = sent.refusal(name) {
        return Err(refusal);
    }
    let leg = Leg {
        loss: Loss::per_packet(loss),
        control,
        ..Leg::new(rtt)
    };
    Ok((leg, Some(sent)))
}

#[cfg(test)]
mod tests {
    use pepd_admin::View;
    use pepd_admin::fixture::Fixture;

    use super::*;

    fn asked(from: &str, to: &str) -> std::result::Result<[Known; 2], String> {
        asked_after(from, to, 2_400_000_000)
    }

    /// Asks when so many bytes were sent over each leg.
    fn asked_after(from: &str, to: &str, bytes: u64) -> std::result::Result<[Known; 2], String> {
        asked_beside([None; 2], [from, to], bytes)
    }

    fn asked_beside(
        given: [Option<Leg>; 2],
        [from, to]: [&str; 2],
        bytes: u64,
    ) -> std::result::Result<[Known; 2], String> {
        let fixture = Fixture::new(3);
        let mut pairs = fixture.status().pairs;
        for pair in &mut pairs {
            pair.client_leg.sent_bytes = bytes;
            pair.upstream_leg.sent_bytes = bytes;
        }
        let flows = FlowList {
            total: 3,
            matching: 3,
            flows: fixture.flows(),
        };
        of(&pairs, &flows, [from, to], given)
    }

    #[test]
    fn a_pair_is_two_names() {
        assert_eq!(ends("a:b"), Ok(["a", "b"]));
        for wrong in ["a", "a:b:c", ":b", "a:", ":", ""] {
            assert!(ends(wrong).unwrap_err().contains("write one as A:B"));
        }
    }

    #[test]
    fn data_goes_over_one_leg_and_then_the_other() {
        let pair = &Fixture::new(3).status().pairs[0];
        let (client, server) = (&pair.client_campus, &pair.server_campus);
        let [first, second] = asked(client, server).unwrap();
        assert_eq!(Some(first.0.rtt), pair.client_leg.rtt);
        assert_eq!(Some(first.0.loss.per_packet), pair.client_leg.retransmitted);
        let back = asked(server, client).unwrap();
        assert_eq!(back, [second, first]);
    }

    #[test]
    fn of_a_leg_that_has_sent_nothing_yet_nothing_is_said() {
        let error = asked_after("a", "b", 5_000).unwrap_err();
        assert!(error.contains("leg lan: of what"), "{error}");
        assert!(error.contains("0 of 3 segments"), "{error}");
        assert!(error.contains("with --in beside --of"), "{error}");
    }

    #[test]
    fn a_leg_that_is_given_is_not_asked_for() {
        let near = Leg::new(0.001);
        let error = asked_beside([Some(near), None], ["a", "b"], 5_000).unwrap_err();
        assert!(error.contains("with --out beside --of"), "{error}");
        let [first, second] = asked_beside([Some(near), None], ["a", "b"], 2_400_000_000).unwrap();
        assert_eq!(first, (near, None));
        assert_eq!(second, asked("a", "b").unwrap()[1]);
    }

    #[test]
    fn a_pair_without_connections_is_named() {
        let error = asked("nowhere", "b").unwrap_err();
        assert!(error.contains("between nowhere and b"), "{error}");
    }
}
