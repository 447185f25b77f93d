use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const KERNEL: u64 = 4 << 20;
const PLENTY: Memory = Memory {
    most: 2 << 30,
    held: 0,
    active: 1,
    connections: 1,
};

fn sample(bits: f64, rtt_ms: u64, window: u64, size: u64) -> Sample {
    Sample {
        rate: bits / 8.0,
        rtt: Duration::from_millis(rtt_ms),
        window,
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
        let under_way = (path * windows).min(size as f64 / 2.0);
        let rate = (under_way / windows / 0.6 * 8.0).min(50e6);
        let step = tuner.sample(&sample(rate, 600, under_way as u64, size), &PLENTY);
        if let Step::Set(next) = step {
            size = next;
        }
    }
    let payload = size as f64 / 2.0;
    assert!(
        payload >= 1.9 * path && payload >= (windows + 0.9) * path,
        "{payload}"
    );
    assert_eq!(tuner.why(), Why::Path);
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

#[test]
fn when_memory_is_short_a_new_connection_begins_small() {
    let short = Memory {
        most: 64 << 20,
        held: 40 << 20,
        active: 100,
        connections: 100,
    };
    assert_eq!(
        Tuner::begin(Way::Send, &PLENTY, 16 << 10, KERNEL).1,
        Step::Keep
    );
    let (mut tuner, step) = Tuner::begin(Way::Send, &short, 16 << 10, KERNEL);
    assert_eq!((step, tuner.why()), (Step::Set(LEAST_SENT), Why::Memory));
    let (_, step) = Tuner::begin(Way::Receive, &short, 1 << 20, KERNEL);
    assert_eq!(step, Step::Set(1 << 20), "the window that was told");
    // While it is idle it stays so, and is the kernel's once it carries something.
    let idle = sample(0.0, 20, 14_480, LEAST_SENT);
    assert_eq!(tuner.sample(&idle, &PLENTY), Step::Keep);
    let carries = sample(50e6, 20, 100_000, LEAST_SENT);
    assert_eq!(tuner.sample(&carries, &PLENTY), Step::GiveBack(LEAST_SENT));
    assert_eq!(tuner.why(), Why::Kernel);
}

/// One that holds much gives way to many that hold little.
#[test]
fn who_holds_much_is_held_back_first() {
    let short = Memory {
        most: 64 << 20,
        held: 54 << 20,
        active: 10,
        connections: 10,
    };
    let mut hog = Tuner::new(Way::Send);
    let mut large = sample(50e6, 600, 7_500_000, 16 << 20);
    large.held = 16 << 20;
    let step = hog.sample(&large, &short);
    assert_eq!(step, Step::Set(5 << 20));
    assert_eq!(hog.why(), Why::Memory);
    let mut small = Tuner::new(Way::Send);
    let mut modest = sample(10e6, 20, 50_000, 100 << 10);
    modest.held = 50 << 10;
    let step = small.sample(&modest, &short);
    // 10 MiB that are free among ten, and of each both buffers of a direction.
    let part = modest.held + (10 << 20) / 20;
    assert_eq!(
        step,
        Step::Set(part),
        "more than it has, and no more than its part"
    );
    // When there is memory again, it has what it wants.
    let step = hog.sample(&sample(50e6, 600, 7_500_000, 5 << 20), &PLENTY);
    assert!(
        matches!(step, Step::Set(size) if size > 16 << 20),
        "{step:?}"
    );
}

#[test]
fn an_account_is_full_when_another_one_does_not_fit() {
    let (mut account, limit) = (Account::default(), Some(16 * RESERVE));
    for _ in 0..15 {
        assert!(!account.enter(limit));
    }
    assert!(account.enter(limit) && account.is_full());
    assert!(!account.change(RESERVE, 0, limit), "it has its reserve");
    let unlimited = account.memory(None, 1 << 30, 16);
    assert_eq!(unlimited.held, 15 * RESERVE);
    assert_eq!(account.memory(limit, 1 << 30, 16).held, 16 * RESERVE);
    assert!(
        !account.leave(RESERVE, limit),
        "a sixteenth below, with another one"
    );
    assert!(account.leave(0, limit) && !account.is_full());
    let pipes = |active| WorkerUse {
        pipes: active * RESERVE,
        active,
    };
    assert!(account.change_use(pipes(0), pipes(2), limit), "pipes count");
    assert!(account.judge(None), "without a limit it is never full");
}

proptest! {
    /// However many readers are slow, what they hold stays within the memory and what each may have in
    /// any case.
    #[test]
    fn slow_readers_stay_within_the_memory(
        count in 1_usize..400,
        megabytes in 16_u64..512,
        seconds in 1_usize..60,
        bits in 1e5_f64..1e9,
        arrivals in 1_usize..400,
    ) {
        let most = megabytes << 20;
        let links = 125_000_000; // What comes in a second, however many there are.
        let mut flows: Vec<(Tuner, u64, u64)> = Vec::new();
        for _ in 0..seconds {
            let held: u64 = flows.iter().map(|flow| flow.1).sum();
            let active = flows.len() as u64;
            let memory = Memory { most, held, active, connections: active };
            for _ in 0..arrivals.min(count - flows.len()) {
                let (tuner, step) = Tuner::begin(Way::Send, &memory, LEAST, KERNEL);
                let size = if let Step::Set(size) = step { size } else { KERNEL };
                flows.push((tuner, 0, size));
            }
            for (tuner, held, size) in &mut flows {
                let mut seen = sample(bits, 600, *size / 2, *size);
                seen.held = *held;
                match tuner.sample(&seen, &memory) {
                    Step::Set(next) => *size = next,
                    Step::GiveBack(_) => *size = KERNEL,
                    Step::Keep => {}
                }
            }
            // Nobody reads: all that may be held is, as far as the links carry it.
            let mut left = links;
            for (_, held, size) in &mut flows {
                let more = size.saturating_sub(*held).min(left);
                *held += more;
                left -= more;
            }
            let held: u64 = flows.iter().map(|flow| flow.1).sum();
            let least = flows.len() as u64 * LEAST;
            // Half of the memory may be free when a second begins in which the links fill it.
            let bound = most.max(most / 2 + links) + least;
            prop_assert!(held <= bound, "{held} of {most} by {}", flows.len());
        }
    }
}
