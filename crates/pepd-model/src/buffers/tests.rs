use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const KERNEL: u64 = 4 << 20;
const PLENTY: Memory = Memory {
    most: 2 << 30,
    used: 0,
    promised: true,
};

fn sample(bits: f64, rtt_ms: u64, window: u64, size: u64) -> Sample {
    Sample {
        rate: bits / 8.0,
        rtt: Duration::from_millis(rtt_ms),
        window,
        behind: 0,
        held: size / 2,
        size,
        kernel_most: KERNEL,
        useful: u64::MAX,
    }
}

#[test]
fn a_short_path_is_the_kernels() {
    let mut tuner = Tuner::new(Way::Send);
    for size in [16 << 10, 1 << 20, KERNEL] {
        let step = tuner.sample(&sample(1e9, 5, 1 << 20, size), &PLENTY);
        assert_eq!(
            (step, tuner.set(), tuner.why()),
            (Step::Keep, None, Why::Kernel)
        );
    }
}

/// 600 ms at 50 Mbit/s are 3.75 MB, and what a sample shows at first is what the buffer allows.
#[rstest]
#[case::reno_s_window(1.0)]
#[case::bbr_s(2.0)]
#[case::pepd_s_own(3.0)]
fn a_long_fat_path_has_what_it_needs_in_a_few_samples(#[case] windows: f64) {
    let (path, mut size) = (3.75e6, KERNEL);
    let mut tuner = Tuner::new(Way::Send);
    for _ in 0..4 {
        let under_way = (path * windows).min(size as f64 / 1.1);
        let rate = (under_way / windows / 0.6 * 8.0).min(50e6);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "fewer bytes than a buffer has"
        )]
        let under_way = under_way as u64;
        let step = tuner.sample(&sample(rate, 600, under_way, size), &PLENTY);
        if let Step::Set(next) = step {
            size = next;
        }
    }
    let payload = size as f64 / 1.1;
    assert!(
        payload >= 1.9 * path && payload >= (windows + 0.9) * path,
        "{payload}"
    );
    assert_eq!(tuner.why(), Why::Path);
}

/// With 30 % lost some packets are lost five times, and what came behind them is kept for as many round trips, of which
/// each is 1.5 MB at 20 Mbit/s over 600 ms: in the sender's buffer and in the receiver's.
#[rstest]
#[case::sent(Way::Send, 3.0, 1.125)]
#[case::received(Way::Receive, 0.0, 2.0)]
fn what_came_behind_what_is_lost_has_room(
    #[case] way: Way,
    #[case] windows: f64,
    #[case] bookkeeping: f64,
) {
    const PATH: f64 = 1.5e6;
    let mut size = KERNEL;
    let mut tuner = Tuner::new(way);
    for _ in 0..6 {
        let kept = (6.0 * PATH).min(size as f64 / bookkeeping);
        let bits = 20e6 * kept / (6.0 * PATH);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "fewer bytes than a buffer has"
        )]
        let sample = Sample {
            behind: (kept - bits / 8.0 * 0.6).max(0.0) as u64,
            ..sample(bits, 600, (windows * PATH) as u64, size)
        };
        if let Step::Set(next) = tuner.sample(&sample, &PLENTY) {
            size = next;
        }
    }
    assert!(size as f64 / bookkeeping > 6.0 * PATH, "{size}");
}

/// Packets of a few bytes cost the kernel many times what they carry: a reader that has stopped has nothing behind a loss.
#[test]
fn who_does_not_read_gets_no_more_room_for_it() {
    let mut tuner = Tuner::new(Way::Receive);
    for _ in 0..9 {
        let sample = Sample {
            behind: KERNEL / 2,
            held: KERNEL,
            ..sample(0.0, 600, 0, KERNEL)
        };
        assert_eq!(tuner.sample(&sample, &PLENTY), Step::Keep);
    }
}

#[test]
fn it_grows_at_once_and_shrinks_slowly_back_to_the_kernel() {
    let mut tuner = Tuner::new(Way::Send);
    let Step::Set(large) = tuner.sample(&sample(50e6, 600, 7_500_000, KERNEL), &PLENTY) else {
        panic!("{tuner:?}");
    };
    let (mut size, mut samples) = (large, 0);
    loop {
        samples += 1;
        match tuner.sample(&sample(1e6, 600, 0, size), &PLENTY) {
            Step::Set(next) => {
                assert!(next < size && next >= size / 8 * 7, "{size} becomes {next}");
                size = next;
            }
            Step::GiveBack(last) => break assert_eq!(last, KERNEL),
            Step::Keep => panic!("{tuner:?}"),
        }
    }
    assert!(samples >= 5, "{samples}");
    assert_eq!((tuner.set(), tuner.why()), (None, Why::Kernel));
}

/// What the peer may send by the window that it was told has room.
#[test]
fn a_receive_buffer_that_is_full_stays() {
    let mut tuner = Tuner::new(Way::Receive);
    let step = tuner.sample(&sample(50e6, 600, 0, KERNEL), &PLENTY);
    let Step::Set(large) = step else {
        panic!("{step:?}");
    };
    let mut full = sample(0.0, 600, 0, large);
    full.held = large;
    let step = tuner.sample(&full, &PLENTY);
    assert!(
        !matches!(step, Step::Set(next) | Step::GiveBack(next) if next < large),
        "{step:?}"
    );
    full.held = 0;
    let step = tuner.sample(&full, &PLENTY);
    assert!(matches!(step, Step::Set(next) if next < large), "{step:?}");
}

/// More than the window's scale can say is of no use.
#[test]
fn no_more_than_the_peer_can_be_told_of() {
    let mut tuner = Tuner::new(Way::Receive);
    let mut long = sample(1e9, 600, 0, KERNEL);
    long.useful = 6 << 20;
    assert_eq!(tuner.sample(&long, &PLENTY), Step::Set(6 << 20));
}

fn memory(megabytes: u64, used: u64) -> Memory {
    Memory {
        most: megabytes << 20,
        used: used << 20,
        promised: true,
    }
}

#[test]
fn a_new_connection_is_the_kernels_only_where_there_is_room_for_all_that_it_may_take() {
    let cost = 20 << 20;
    assert!(memory(256, 96).leaves_to_the_kernel(cost));
    assert!(!memory(256, 97).leaves_to_the_kernel(cost));
    let unpromised = Memory {
        promised: false,
        ..memory(64, 30)
    };
    assert!(unpromised.leaves_to_the_kernel(cost));
    let short = memory(64, 60);
    let (mut tuner, step) = Tuner::begin(Way::Send, &short, 16 << 10);
    assert_eq!((step, tuner.why()), (Step::Set(LEAST_SENT), Why::Memory));
    let (_, step) = Tuner::begin(Way::Receive, &short, 1 << 20);
    assert_eq!(step, Step::Set(1 << 20), "the window that was told");
    assert_eq!(Tuner::begin(Way::Send, &PLENTY, 0).1, Step::Set(FIRST));
    // While it is idle it stays so, and is the kernel's once it carries something.
    let idle = sample(0.0, 20, 14_480, LEAST_SENT);
    assert_eq!(tuner.sample(&idle, &PLENTY), Step::Keep);
    let carries = sample(50e6, 20, 100_000, LEAST_SENT);
    assert_eq!(tuner.sample(&carries, &PLENTY), Step::GiveBack(LEAST_SENT));
    assert_eq!(tuner.why(), Why::Kernel);
}

/// One that has much gives way to many that have little, and takes it again.
#[test]
fn who_has_much_gives_way() {
    let mut hog = Tuner::new(Way::Send);
    let mut size = 16 << 20;
    hog.set = Some(size);
    let short = memory(64, 58);
    let step = hog.sample(&sample(50e6, 600, 7_500_000, size), &short);
    size = ((6 << 20) + size + BEYOND) / 3;
    assert_eq!((step, hog.why()), (Step::Set(size), Why::Memory));
    let mut small = Tuner::new(Way::Send);
    small.set = Some(LEAST_SENT);
    let step = small.sample(&sample(10e6, 20, 50_000, LEAST_SENT), &short);
    assert!(
        matches!(step, Step::Set(size) if size > LEAST_SENT),
        "{step:?}"
    );
    let step = hog.sample(&sample(50e6, 600, 7_500_000, size), &PLENTY);
    assert!(matches!(step, Step::Set(now) if now > size), "{step:?}");
}

/// What carries nothing gives back what it had, as long as memory is short.
#[test]
fn an_idle_one_has_the_least_in_the_end() {
    for way in [Way::Send, Way::Receive] {
        let mut tuner = Tuner::new(way);
        let mut idle = sample(0.0, 600, 0, KERNEL);
        idle.held = 0;
        assert_eq!(tuner.sample(&idle, &PLENTY), Step::Keep);
        let mut seconds = 0;
        while tuner.set != Some(LEAST) {
            let Step::Set(size) = tuner.sample(&idle, &memory(64, 40)) else {
                panic!("{tuner:?} after {seconds}");
            };
            idle.size = size;
            seconds += 1;
        }
        assert!((10..40).contains(&seconds), "{seconds}");
    }
}

#[test]
fn an_account_is_full_when_another_one_does_not_fit() {
    let (mut account, limit) = (Account::default(), Some(16 * RESERVE));
    for _ in 0..13 {
        assert!(!account.enter(limit));
    }
    assert!(account.has_room(RESERVE, limit) && !account.has_room(RESERVE + 1, limit));
    assert!(account.enter(limit) && account.is_full());
    assert_eq!(account.memory(limit, 1 << 30).free(), 0);
    assert_eq!(
        account.memory(None, 1 << 30).free(),
        1 << 30,
        "none holds any"
    );
    assert!(!account.leave(Holds::NEW, limit));
    assert!(account.leave(Holds::NEW, limit), "a sixteenth below");
    assert!(!account.change_pipes(0, 2 * RESERVE, limit), "their eighth");
    assert!(
        account.change_pipes(2 * RESERVE, 4 * RESERVE, limit),
        "pipes count"
    );
    assert!(account.judge(None), "without a limit it is never full");
}

/// Four buffers with their sizes; what their path carries in bits per second, and its round trip in ms.
type Flow = ([(Tuner, u64); 4], f64, u64);

proptest! {
    /// However many come, whatever they carry, and whoever stops to read: what all buffers may hold
    /// stays within the limit, so also what they do hold.
    #[test]
    fn what_all_may_hold_stays_within_the_limit(
        megabytes in 16_u64..2048,
        arrivals in proptest::collection::vec((0_usize..40, 0.0_f64..1e9, 1_u64..800), 1..60),
        reads in proptest::collection::vec(any::<bool>(), 1..50),
    ) {
        let limit = Some(megabytes << 20);
        let cost = 2 * (2 * KERNEL + 2 * BEYOND);
        let mut account = Account::default();
        // Four buffers each; of each what the path carries.
        let mut flows: Vec<Flow> = Vec::new();
        for (count, bits, rtt) in arrivals {
            for _ in 0..count {
                if account.is_full() {
                    break;
                }
                account.enter(limit);
                let memory = account.memory(limit, 1 << 40);
                let free = memory.leaves_to_the_kernel(cost) && account.has_room(cost - RESERVE, limit);
                let buffers = [Way::Send, Way::Receive, Way::Send, Way::Receive].map(|way| {
                    if free {
                        return (Tuner::new(way), KERNEL);
                    }
                    let least = Memory { most: 0, ..memory };
                    let (tuner, _) = Tuner::begin(way, &least, 0);
                    (tuner, tuner.set().unwrap_or_default())
                });
                let counted = |(tuner, _): &(Tuner, u64)| tuner.counted(0, KERNEL);
                let counted: u64 = buffers.iter().map(counted).sum();
                account.change(Holds::NEW, Holds { held: 0, counted }, limit);
                flows.push((buffers, bits, rtt));
            }
            for (index, (buffers, bits, rtt)) in flows.iter_mut().enumerate() {
                let bits = if reads[index % reads.len()] { *bits } else { 0.0 };
                for (tuner, size) in buffers {
                    let memory = account.memory(limit, 1 << 40);
                    let mut seen = sample(bits, *rtt, *size / 2, *size);
                    seen.held = if bits > 0.0 { *size / 2 } else { *size + BEYOND };
                    let before = tuner.counted(seen.held, KERNEL);
                    let mut next = *tuner;
                    let step = next.sample(&seen, &memory);
                    let after = next.counted(seen.held, KERNEL);
                    if after > before && !account.has_room(after - before, limit) {
                        continue;
                    }
                    let count = |counted| Holds { held: 0, counted };
                    account.change(count(before), count(after), limit);
                    *tuner = next;
                    match step {
                        Step::Set(next) => *size = next,
                        Step::GiveBack(_) => *size = KERNEL,
                        Step::Keep => {}
                    }
                }
            }
            // What a buffer holds that has become smaller is not gone, and was counted.
            let may: u64 = flows
                .iter()
                .flat_map(|flow| &flow.0)
                .map(|(tuner, _)| tuner.counted(0, KERNEL))
                .sum();
            let budget = (megabytes << 20) / 8 * 7;
            prop_assert!(may <= budget, "{may} of {budget} by {}", flows.len());
            prop_assert!(account.counted() <= budget, "{account:?}");
        }
    }
}
