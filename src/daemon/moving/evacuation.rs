//! All connections go to another box while the daemon drains (`pepd drain --to`), as often as it takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pepd_admin::api::{MoveOrder, NotMoved};
use pepd_admin::wire::MoveReport;
use tokio::sync::oneshot::{Receiver, channel, error::TryRecvError};

use super::MoveTeller;

/// The time after which those that stayed are tried again.
const PAUSE: Duration = Duration::from_secs(2);

/// What has connections move until none is left.
#[derive(Debug)]
pub struct Evacuation {
    teller: MoveTeller,
    to: String,
    /// What becomes of the order that is being carried out.
    under_way: Option<Receiver<Result<MoveReport, NotMoved>>>,
    next: Instant,
    /// What was last said of those that stay, or of why none moves.
    said: String,
}

impl Evacuation {
    /// Begins now, with this box, one of those that `teller` knows.
    pub fn new(teller: MoveTeller, to: &str, now: Instant) -> Self {
        Self {
            teller,
            to: to.to_owned(),
            under_way: None,
            next: now,
            said: String::new(),
        }
    }

    /// Takes note of what has become of the last order, and gives another one if it is time. It waits for
    /// nothing.
    pub fn go_on(&mut self, now: Instant) {
        if let Some(answer) = &mut self.under_way {
            let report = match answer.try_recv() {
                Ok(report) => report,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Closed) => {
                    let why = "what moves connections has ended".to_owned();
                    Err(NotMoved::Because(why))
                }
            };
            self.under_way = None;
            let goes_on = report
                .as_ref()
                .is_ok_and(|it| it.left > 0 && !it.moved.is_empty());
            self.next = if goes_on { now } else { now + PAUSE };
            self.tell(report);
        }
        if now >= self.next {
            let (answer, report) = channel();
            self.teller.tell(all_to(&self.to), answer);
            self.under_way = Some(report);
        }
    }

    /// Gives the name of the box that connections move to.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// Tells whether an order is being carried out.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Logs what has moved, and once why others do not.
    fn tell(&mut self, report: Result<MoveReport, NotMoved>) {
        let to = &self.to;
        let why = match report {
            Ok(report) => {
                if !report.moved.is_empty() {
                    tracing::info!("{} connections have moved to {to}", report.moved.len());
                }
                reasons(&report)
            }
            Err(NotMoved::UnderWay) => return,
            Err(NotMoved::Because(why)) => format!("nothing moves: {why}"),
        };
        if why != self.said && !why.is_empty() {
            tracing::warn!("{why}; they may finish here, and are tried again");
        }
        self.said = why;
    }
}

fn all_to(to: &str) -> MoveOrder {
    MoveOrder {
        to: to.to_owned(),
        campus: None,
        source: None,
        flows: Vec::new(),
        dry_run: false,
    }
}

/// Says how many connections stay for which reason.
pub(super) fn reasons(report: &MoveReport) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for it in &report.stayed {
        *counts.entry(&it.why).or_default() += 1;
    }
    let counts = counts.into_iter().map(|(why, count)| match count {
        1 => format!("1 connection stays: {why}"),
        _ => format!("{count} connections stay: {why}"),
    });
    counts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use pepd_admin::wire::StayedConnection;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn stayed(why: &str) -> StayedConnection {
        StayedConnection {
            id: 1,
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
            why: why.to_owned(),
        }
    }

    #[test]
    fn an_order_follows_once_the_one_before_is_carried_out() {
        let (orders, mut inbox) = unbounded_channel();
        let names = ["hb-c".to_owned()].into();
        let mut now = Instant::now();
        let is_busy = Arc::new(AtomicBool::new(false));
        let teller = MoveTeller {
            orders,
            is_busy: Arc::clone(&is_busy),
            names,
        };
        let mut evacuation = Evacuation::new(teller, "hb-c", now);
        let mut begun = |evacuation: &mut Evacuation, now| {
            // What is carried out here is over at once.
            is_busy.store(false, Relaxed);
            evacuation.go_on(now);
            inbox.try_recv().ok()
        };
        let (order, answer) = begun(&mut evacuation, now).unwrap();
        assert_eq!((order.to.as_str(), order.flows.len()), ("hb-c", 0));
        now += PAUSE * 2;
        assert!(begun(&mut evacuation, now).is_none(), "it is under way");
        let stays = MoveReport {
            stayed: vec![stayed("it is mending a loss")],
            ..MoveReport::default()
        };
        answer.send(Ok(stays)).unwrap();
        assert!(begun(&mut evacuation, now).is_none(), "too soon");
        now += PAUSE;
        let (_, answer) = begun(&mut evacuation, now).unwrap();
        let why = NotMoved::Because("hb-c does not answer".to_owned());
        answer.send(Err(why)).unwrap();
        assert!(begun(&mut evacuation, now).is_none());
        assert_eq!(evacuation.said, "nothing moves: hb-c does not answer");
        // Nobody is there any more.
        drop(begun(&mut evacuation, now + PAUSE));
        assert!(begun(&mut evacuation, now + PAUSE).is_none());
    }

    #[test]
    fn those_that_stay_are_counted_by_the_reason() {
        let report = MoveReport {
            stayed: vec![stayed("b"), stayed("a"), stayed("b")],
            ..MoveReport::default()
        };
        assert_eq!(
            reasons(&report),
            "1 connection stays: a; 2 connections stay: b"
        );
        assert_eq!(reasons(&MoveReport::default()), "");
    }
}
