use pepd_model::buffers::RESERVE;
use pepd_packet::{Size, SourcePrefix};

use super::*;

fn admission(connections: u32, per_source: u32) -> Arc<Admission> {
    Arc::new(Admission::new(limits(connections, per_source)))
}

fn limits(connections: u32, per_source: u32) -> Limits {
    Limits {
        connections,
        per_source,
        source_prefix: SourcePrefix::NETWORK,
        memory: None,
        tcp_memory: Size(1 << 30),
    }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 1, 0, last])
}

#[test]
fn full_at_the_limit_and_free_a_little_below() {
    let admission = admission(32, 1000);
    let mut permits: Vec<_> = (0..31).map(|n| admission.admit(ip(n))).collect();
    assert!(!admission.pressure(Instant::now()).full);
    permits.push(admission.admit(ip(99)));
    assert!(admission.pressure(Instant::now()).full);
    permits.truncate(30);
    assert!(admission.pressure(Instant::now()).full);
    permits.truncate(29);
    assert!(!admission.pressure(Instant::now()).full);
    drop(permits);
    assert_eq!(admission.live(), 0);
    assert_eq!(
        admission.lock().sources.len(),
        0,
        "no trace of a source that left"
    );
}

#[test]
fn a_source_at_its_limit_is_named_until_it_leaves() {
    let admission = admission(1000, 2);
    let first = admission.admit(ip(1));
    let _other = admission.admit(ip(2));
    assert!(admission.pressure(Instant::now()).sources.is_empty());
    let second = admission.admit(ip(1));
    assert_eq!(
        admission.pressure(Instant::now()),
        Pressure {
            sources: vec![ip(1).into()],
            ..Pressure::default()
        }
    );
    drop(second);
    assert!(admission.pressure(Instant::now()).sources.is_empty());
    drop(first);
}

#[test]
fn a_source_never_has_more_than_it_may() {
    let admission = admission(1000, 2);
    let first = admission.try_admit(ip(1)).unwrap();
    let _second = admission.try_admit(ip(1)).unwrap();
    assert!(admission.source_is_full(ip(1)));
    assert!(admission.try_admit(ip(1)).is_none());
    assert!(admission.try_admit(ip(2)).is_some(), "another source");
    assert_eq!(admission.live(), 2);
    let of_another_process = admission.admit(ip(1));
    drop(first);
    assert!(admission.try_admit(ip(1)).is_none(), "two of two");
    drop(of_another_process);
    assert!(admission.try_admit(ip(1)).is_some());
}

#[tokio::test]
async fn those_beyond_the_limit_wait_until_those_before_them_have_come() {
    let admission = admission(1000, 3);
    let _live = admission.admit(ip(1));
    let comes = admission.turn(ip(1)).await.unwrap();
    let leaves = admission.turn(ip(1)).await.unwrap();
    let (third, fourth, ()) = tokio::join!(
        biased;
        admission.turn(ip(1)),
        admission.turn(ip(1)),
        async {
            // Its place goes to one that waits.
            drop(leaves);
            tokio::task::yield_now().await;
            let permit = admission.try_admit(ip(1));
            drop(comes);
            std::mem::forget(permit);
            tokio::task::yield_now().await;
            std::mem::forget(admission.try_admit(ip(1)));
        },
    );
    assert!(third.is_some(), "the one that waited for longer");
    assert!(fourth.is_none(), "three of three");
    assert!(admission.turn(ip(1)).await.is_none());
    assert!(admission.turn(ip(2)).await.is_some(), "another source");
}

#[test]
fn what_never_comes_takes_no_place() {
    use sources::{Sources, Turn};
    let now = Instant::now();
    let mut sources = Sources::default();
    let source = ip(1).into();
    let asks = |sources: &mut Sources, at| sources.ask(source, 2, at);
    assert!(matches!(asks(&mut sources, now), Turn::Now));
    assert!(matches!(asks(&mut sources, now), Turn::Now));
    assert!(matches!(asks(&mut sources, now), Turn::Later(_)));
    // It has waited in vain.
    sources.doubt(source, now);
    for _ in 0..100 {
        assert!(matches!(asks(&mut sources, now), Turn::Now), "nobody waits");
    }
    assert!(!sources.is_full(source, 2));
    let later = now + Duration::from_secs(60);
    assert!(matches!(asks(&mut sources, later), Turn::Later(_)));
    sources.enter(source, 2);
    sources.enter(source, 2);
    assert!(matches!(asks(&mut sources, now), Turn::Never));
    sources.leave(source, 2, 1);
    sources.leave(source, 2, 1);
    for _ in 0..102 {
        assert_eq!(sources.len(), 1);
        sources.has_come(source, 2);
    }
    assert_eq!(sources.len(), 0, "no trace of a source that left");
}

#[test]
fn new_limits_count_at_once() {
    let admission = admission(1000, 1000);
    let _permits: Vec<_> = (0..4).map(|_| admission.admit(ip(1))).collect();
    admission.set_limits(limits(4, 4));
    assert_eq!(
        admission.pressure(Instant::now()),
        Pressure {
            full: true,
            sources: vec![ip(1).into()],
            ..Pressure::default()
        }
    );
    admission.set_limits(limits(5, 5));
    assert_eq!(admission.pressure(Instant::now()), Pressure::default());
}

#[test]
fn it_is_full_when_there_is_no_memory_for_another_one() {
    let mut with_memory = limits(1000, 1000);
    // An eighth is for pipes.
    with_memory.memory = Some(Size(16 * RESERVE));
    let admission = Arc::new(Admission::new(with_memory));
    let short = || admission.pressure(Instant::now()).memory;
    let counted = |counted| Holds { held: 0, counted };
    let permit = admission.admit(ip(1));
    let count = permit.count();
    assert_eq!((admission.memory_counted(), short()), (RESERVE, false));
    assert!(!count.grow(14 * RESERVE), "there is not so much");
    assert_eq!(count.counted(), RESERVE);
    assert!(count.grow(13 * RESERVE) && short());
    count.set(counted(8 * RESERVE));
    assert!(!short());
    admission.note_pipes(0, 2 * RESERVE);
    assert!(!short(), "these are within theirs");
    admission.note_pipes(2 * RESERVE, 8 * RESERVE);
    assert!(short());
    drop(permit);
    assert_eq!((admission.memory_counted(), short()), (8 * RESERVE, false));
    count.set(counted(16 * RESERVE));
    assert!(!count.grow(1), "it has left");
    assert_eq!(admission.memory_counted(), 8 * RESERVE, "it has left");
    with_memory.memory = Some(Size(6 * RESERVE));
    admission.set_limits(with_memory);
    assert!(short());
}

#[test]
fn the_addresses_of_one_network_are_one_source() {
    let admission = admission(1000, 3);
    let client = |host| format!("2001:db8:1:2::{host}").parse().unwrap();
    let permits = [1, 2, 3].map(|host| admission.admit(client(host)));
    let _other = admission.admit("2001:db8:1:3::1".parse().unwrap());
    let full = admission.pressure(Instant::now()).sources;
    assert_eq!(full, [SourcePrefix::NETWORK.source_of(client(9))]);
    // Each leaves the source that it was counted for.
    let mut coarser = limits(1000, 3);
    coarser.source_prefix = SourcePrefix(48);
    admission.set_limits(coarser);
    assert!(
        admission.pressure(Instant::now()).sources.is_empty(),
        "of another prefix"
    );
    let _more = admission.admit(client(4));
    drop(permits);
    assert!(admission.pressure(Instant::now()).sources.is_empty());
    assert_eq!(admission.lock().sources.len(), 2);
}

#[test]
fn a_flood_is_told_to_the_capture() {
    let (admission, now) = (admission(10, 10), Instant::now());
    for last in 0..=255 {
        for third in 0..5 {
            let destination = IpAddr::from([10, 2, third, last]);
            admission.note_flood(Flood::Of(destination), now);
        }
    }
    assert!(!admission.pressure(now).flooded);
    assert_eq!(admission.take_flooded().len(), FLOODED);
    assert_eq!(admission.take_flooded(), [] as [IpAddr; 0]);
    admission.note_flood(Flood::Everywhere, now);
    assert!(admission.pressure(now).flooded);
    assert!(!admission.pressure(now + FLOODED_FOR).flooded);
}

#[test]
fn exhausted_until_something_ends() {
    let admission = admission(10, 10);
    let permit = admission.admit(ip(1));
    admission.exhausted();
    assert!(admission.pressure(Instant::now()).exhausted);
    drop(permit);
    assert!(!admission.pressure(Instant::now()).exhausted);
}
