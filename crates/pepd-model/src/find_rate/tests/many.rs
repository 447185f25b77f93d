//! Many connections: what each has sent is known late, and most have hardly a packet in an epoch.

use rstest::rstest;

use super::super::simulation::Scenario;
use super::{Seen, go, mbit, usual};

fn mean(seeds: u64, of: impl Fn(u64) -> Seen) -> (f64, f64) {
    let all: Vec<Seen> = (1..=seeds).map(of).collect();
    let mean = |of: fn(&Seen) -> f64| all.iter().map(of).sum::<f64>() / seeds as f64;
    (mean(|it| it.queue), mean(|it| it.share))
}

/// The queue is that of few, however many there are, whether all begin at once or one after the other. (It was 0.1 s as long as it
/// was believed that what is booked is all that is sent.)
#[rstest]
fn the_queue_is_that_of_few(
    #[values(10, 30, 60, 100)] flows: u32,
    #[values(0.0, 0.04)] delayed: f64,
    #[values(0.0, 0.01)] every: f64,
) {
    let active = (0..flows).map(|it| (f64::from(it) * every, 1.0 + f64::from(it)));
    let (queue, share) = mean(4, |seed| {
        go(&Scenario {
            rate: vec![(0.0, mbit(20.0))],
            loss: [0.1; 2],
            legs: vec![flows as usize],
            active: if every > 0.0 {
                active.clone().collect()
            } else {
                Vec::new()
            },
            delayed,
            finds_own_links: true,
            seconds: 30.0,
            seed,
            ..usual(0.05)
        })
    });
    let most = 0.022 + 0.0002 * f64::from(flows);
    assert!(queue < most, "a queue of {queue:.4} s, of {most:.4} s");
    assert!(share > 0.99, "{share:.3} of the link");
}

/// Nor is the link less used where each sends so seldom that its receiver would wait for another packet.
#[rstest]
fn receivers_need_not_wait(#[values(30, 60, 100)] flows: usize, #[values(0.0, 0.1)] loss: f64) {
    let (queue, share) = mean(4, |seed| {
        go(&Scenario {
            rate: vec![(0.0, mbit(20.0))],
            loss: [loss; 2],
            legs: vec![flows],
            delayed: 0.04,
            finds_own_links: true,
            seconds: 60.0,
            seed,
            ..usual(0.2 + 1e-4 * seed as f64)
        })
    });
    assert!(queue < 0.06, "a queue of {queue:.4} s");
    assert!(share > 0.99, "{share:.3} of the link");
}
