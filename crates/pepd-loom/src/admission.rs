//! The limits: connections come and go on all workers, and the limits themselves change.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use loom::thread;
use pepd_packet::{Size, SourcePrefix};

use crate::limits::{Admission, Permit};
use crate::settings::Limits;

fn limits(connections: u32, per_source: u32) -> Limits {
    Limits {
        connections,
        per_source,
        source_prefix: SourcePrefix::NETWORK,
        memory: None,
        tcp_memory: Size(1 << 30),
    }
}

fn one(last: u8) -> IpAddr {
    [10, 1, 0, last].into()
}

/// What is true once nothing happens any more: it is full where the limit is reached, and not where
/// it is not. The limits here are so small that there is nothing between the two.
fn is_settled(admission: &Admission, held: &[&Permit]) {
    let live = u32::try_from(held.len()).unwrap_or(u32::MAX);
    let limits = admission.limits();
    assert_eq!(admission.live(), live);
    let pressure = admission.pressure(Instant::now());
    assert_eq!(pressure.full, live >= limits.connections, "{live} live");
    assert_eq!(
        !pressure.sources.is_empty(),
        live >= limits.per_source,
        "{live} of one source"
    );
}

/// One comes while another goes, at the limit and below it.
pub fn one_comes_while_another_goes(before: usize, connections: u32, per_source: u32) {
    loom::model(move || {
        let admission = Arc::new(Admission::new(limits(connections, per_source)));
        let mut held: Vec<_> = (0..before).map(|_| admission.admit(one(1))).collect();
        let goes = held.pop();
        let leaving = thread::spawn(move || drop(goes));
        let comes = {
            let admission = Arc::clone(&admission);
            thread::spawn(move || admission.admit(one(1)))
        };
        leaving.join().unwrap_or_default();
        held.extend(comes.join().ok());
        assert_eq!(held.len(), before);
        is_settled(&admission, &held.iter().collect::<Vec<_>>());
    });
}

/// The limits change while one comes and another goes.
pub fn the_limits_change_meanwhile() {
    loom::model(|| {
        let admission = Arc::new(Admission::new(limits(3, 3)));
        let goes = admission.admit(one(1));
        let leaving = thread::spawn(move || drop(goes));
        let changing = {
            let admission = Arc::clone(&admission);
            thread::spawn(move || admission.set_limits(limits(1, 1)))
        };
        let comes = admission.admit(one(1));
        leaving.join().unwrap_or_default();
        changing.join().unwrap_or_default();
        is_settled(&admission, &[&comes]);
    });
}

/// Descriptors run out while a connection ends: whoever hears last that there are some is right.
pub fn descriptors_come_back() {
    loom::model(|| {
        let admission = Arc::new(Admission::new(limits(9, 9)));
        let goes = admission.admit(one(1));
        let leaving = thread::spawn(move || drop(goes));
        admission.exhausted();
        leaving.join().unwrap_or_default();
        admission.recovered();
        is_settled(&admission, &[]);
    });
}

/// Two come for the only place of their source: one of them has it.
pub fn two_come_for_one_place() {
    loom::model(|| {
        let admission = Arc::new(Admission::new(limits(9, 1)));
        let comes = |admission: &Arc<Admission>| {
            let admission = Arc::clone(admission);
            thread::spawn(move || admission.try_admit(one(1)))
        };
        let (first, second) = (comes(&admission), comes(&admission));
        let held: Vec<Permit> = [first, second]
            .into_iter()
            .filter_map(|comes| comes.join().ok().flatten())
            .collect();
        assert_eq!(held.len(), 1, "of one");
        is_settled(&admission, &held.iter().collect::<Vec<_>>());
    });
}

/// One comes while the one that has the only place goes: it has the place, or finds it taken.
pub fn one_comes_while_the_last_one_goes() {
    loom::model(|| {
        let admission = Arc::new(Admission::new(limits(9, 1)));
        let goes = admission.try_admit(one(1));
        let leaving = thread::spawn(move || drop(goes));
        let came = admission.try_admit(one(1));
        leaving.join().unwrap_or_default();
        is_settled(&admission, &came.iter().collect::<Vec<_>>());
        if came.is_none() {
            assert!(admission.try_admit(one(1)).is_some(), "it is free");
        }
    });
}
