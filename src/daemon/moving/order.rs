//! Orders to move connections: which they are, whether they can, and what has become of them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use pepd_admin::api::MoveOrder;
use pepd_admin::wire::{MoveReport, MovedConnection, StayedConnection};
use pepd_config::Neighbor;
use pepd_move::machine::{Giver, OFFER_TIME};
use pepd_move::session::Name;
use pepd_move::wire::{Frame, MoveId, Offer, Reason, Refused};
use tokio::time::{sleep, timeout};

use super::Ground;
use super::evacuation::reasons;
use super::give::Giving;
use super::select::{Candidate, candidates};
use super::tracking::Host;
use super::wire::{Ended, Wire};

/// The connections that move together: the first waits while the last is sent. Of 1,000 between two boxes on two
/// processors half stood still for 112 ms with 128, and for 72 ms with 64.
const TOGETHER: usize = 64;

/// The bytes that they have under way together: they are sent within 3.4 s over 20 Mbit/s, of the 5 s that there are.
pub(super) const BYTES_TOGETHER: u64 = 8 << 20;

/// The connections that one order moves, so that its answer does not take long.
const MOST: usize = 512;

/// How often what is in no state to move is tried once more, and when: a loss is mended in some round trips.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// Moves the connections that an order is about, as many as an order moves.
///
/// # Errors
///
/// Why none of them can, in words.
pub(super) async fn carry_out(ground: &Ground, order: &MoveOrder) -> Result<MoveReport, String> {
    let names = ground.moves.neighbors.iter().map(|it| it.name.as_str());
    let place = super::place_of(names, &order.to)?;
    let neighbor = &ground.moves.neighbors[place];
    let name = Name::new(&neighbor.name).ok_or("the neighbor's name is none")?;
    let all = candidates(ground, order);
    let known: BTreeSet<_> = all.iter().map(|it| it.id).collect();
    let named = order.flows.iter().copied();
    let unknown = named.filter(|id| !known.contains(id)).collect();
    let meant = all.len();
    let mut report = MoveReport {
        to: order.to.clone(),
        dry_run: order.dry_run,
        meant: meant as u64,
        left: meant.saturating_sub(MOST) as u64,
        unknown,
        ..MoveReport::default()
    };
    let meant = all.into_iter().take(MOST);
    let mut those = able(ground, neighbor, meant, &mut report).await;
    let to = Destination {
        ground,
        neighbor,
        place,
        name,
    };
    for attempt in 1..=TRIES {
        let mut again = Vec::new();
        let mut chunks = chunks(&those).into_iter();
        while let Some(some) = chunks.next() {
            match to.give(some, order.dry_run, &mut report).await {
                Ok(some) => again.extend(some),
                // Nothing has happened yet.
                Err(why) if is_untouched(&report, attempt) => return Err(why),
                Err(why) => {
                    let rest = std::iter::once(some).chain(chunks).flatten();
                    let rest = rest.chain(again.iter().map(|(it, _)| it));
                    report.stayed.extend(rest.map(|it| stayed(it, &why)));
                    return Ok(report);
                }
            }
        }
        if attempt == TRIES || again.is_empty() || order.dry_run {
            report
                .stayed
                .extend(again.iter().map(|(it, why)| stayed(it, why)));
            break;
        }
        those = again.into_iter().map(|(it, _)| it).collect();
        sleep(PAUSE).await;
    }
    Ok(report)
}

/// Says in the log what has come of an order of which nothing has moved; of what has moved each move says it.
pub(super) fn log(order: &MoveOrder, done: &Result<MoveReport, String>) {
    if order.dry_run {
        return;
    }
    let to = &order.to;
    match done {
        Err(why) => tracing::warn!(to, why, "nothing has moved"),
        Ok(report) if report.moved.is_empty() && !report.stayed.is_empty() => {
            tracing::warn!(to, "nothing has moved: {}", reasons(report));
        }
        Ok(_) => {}
    }
}

/// Gives those for which there is a way, each with what its source is translated to; enters why the others stay.
async fn able(
    ground: &Ground,
    neighbor: &Neighbor,
    all: impl Iterator<Item = Candidate>,
    report: &mut MoveReport,
) -> Vec<Candidate> {
    let ways = [on_link(neighbor.v4).await, on_link(neighbor.v6).await];
    let mut host = Host::default();
    let mut those = Vec::new();
    for candidate in all {
        let flow = &candidate.flow;
        let translated = match &ways[usize::from(flow.client.is_ipv6())] {
            Ok(()) => ground.tracking.translated(flow, &mut host).await,
            Err(why) => Err(why.clone()),
        };
        match translated {
            Ok(translated) => those.push(Candidate {
                translated,
                ..candidate
            }),
            Err(why) => report.stayed.push(stayed(&candidate, &why)),
        }
    }
    those
}

/// Tells whether nothing has been tried yet of what a report is about.
fn is_untouched(report: &MoveReport, attempt: usize) -> bool {
    attempt == 1 && report.moved.is_empty() && report.lost.is_empty()
}

/// Divides connections into those that move together: not too many, and not so much that it takes long to send.
fn chunks(those: &[Candidate]) -> Vec<&[Candidate]> {
    let mut chunks = Vec::new();
    let mut rest = those;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fit = rest.iter().take(TOGETHER).take_while(|it| {
            bytes += it.bytes;
            bytes <= BYTES_TOGETHER
        });
        // One alone is as large as it is.
        let (some, others) = rest.split_at(fit.count().max(1));
        chunks.push(some);
        rest = others;
    }
    chunks
}

/// Tells why nothing can be sent on to this address, if that is so.
async fn on_link(address: Option<impl Into<IpAddr>>) -> Result<(), String> {
    let address: IpAddr = address
        .map(Into::into)
        .ok_or("the [[neighbor]] has no address of its family: add one to `via`")?;
    match pepd_net::link_to(address).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) if pepd_net::is_local(address).await.unwrap_or(false) => Err(format!(
            "{address} is this host's own, and not the neighbor's"
        )),
        Ok(None) => Err(format!(
            "{address} is on no network of this host's, so that nothing can be sent on to it"
        )),
        Err(error) => Err(format!("{address} is not reached: {error}")),
    }
}

pub(super) fn stayed(candidate: &Candidate, why: &str) -> StayedConnection {
    StayedConnection {
        id: candidate.id,
        client: candidate.flow.client,
        server: candidate.flow.server,
        why: why.to_owned(),
    }
}

/// Where connections go.
pub(super) struct Destination<'a> {
    pub(super) ground: &'a Ground,
    pub(super) neighbor: &'a Neighbor,
    /// Which of the neighbors it is.
    pub(super) place: usize,
    pub(super) name: Name,
}

impl Destination<'_> {
    /// Gives some connections together; adds to the report what has become of them, and gives those that may be
    /// tried again.
    async fn give(
        &self,
        those: &[Candidate],
        dry_run: bool,
        report: &mut MoveReport,
    ) -> Result<Vec<(Candidate, String)>, String> {
        let flows = those.iter().map(Candidate::offered).collect();
        let id = MoveId(random_id().map_err(|error| format!("no random number: {error}"))?);
        let offer = Offer { id, flows };
        let opened = Wire::open(self.ground, &self.name, self.neighbor.address).await;
        let mut wire = opened.map_err(|why| {
            let (name, at) = (&self.neighbor.name, self.neighbor.address);
            format!("{name} at {at}: {}", why.with_hint())
        })?;
        if dry_run {
            let offered = timeout(OFFER_TIME, async {
                wire.send(&Frame::Offer(offer)).await?;
                let answer = wire.next().await?;
                wire.send(&Frame::Abort(Reason::Cancelled)).await?;
                Ok::<_, Ended>(answer)
            });
            let answer = offered.await.unwrap_or(Err(Ended::Late));
            return match answer.map_err(|why| why.to_string())? {
                Frame::Accept(refused) => {
                    judge(those, &refused, report);
                    Ok(Vec::new())
                }
                Frame::Abort(why) => Err(why.to_string()),
                _ => Err(Reason::Confused.to_string()),
            };
        }
        let begun = Instant::now();
        let (giver, actions) = Giver::offer(offer, begun);
        let mut giving = Giving::begin(self, those, wire, (giver, actions));
        self.ground.figures.set_under_way(those.len());
        giving.run().await;
        let again = giving.finish(report);
        self.ground.figures.set_under_way(0);
        Ok(again)
    }
}

/// Enters what the other box would take.
fn judge(those: &[Candidate], refused: &[Refused], report: &mut MoveReport) {
    for (index, candidate) in those.iter().enumerate() {
        let why = refused.iter().find(|it| usize::from(it.index) == index);
        match why {
            Some(refused) => {
                let why = refused.why.to_string();
                report.stayed.push(stayed(candidate, &why));
            }
            None => report.moved.push(moved(candidate, Duration::ZERO)),
        }
    }
}

pub(super) fn moved(candidate: &Candidate, pause: Duration) -> MovedConnection {
    MovedConnection {
        id: candidate.id,
        client: candidate.flow.client,
        server: candidate.flow.server,
        pause: pause.as_secs_f64(),
    }
}

fn random_id() -> std::io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_move_together_are_not_too_many_nor_too_large() {
        let flow = pepd_packet::FourTuple {
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
        };
        let of = |bytes: &[u64]| {
            let candidate = |&bytes: &u64| Candidate {
                id: 1,
                flow,
                translated: None,
                bytes,
            };
            let those: Vec<_> = bytes.iter().map(candidate).collect();
            chunks(&those)
                .into_iter()
                .map(<[_]>::len)
                .collect::<Vec<_>>()
        };
        let half = BYTES_TOGETHER / 2;
        assert_eq!(of(&[]), [0; 0]);
        assert_eq!(of(&[0; 300]), [64, 64, 64, 64, 44]);
        assert_eq!(of(&[half, half, 1, half]), [2, 2]);
        assert_eq!(of(&[BYTES_TOGETHER * 2, 1, 1]), [1, 2]);
    }
}
