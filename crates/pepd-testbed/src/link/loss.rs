//! Which packets are lost on the wire: seeded, so that a run can be repeated.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{
    shape::{Loss, REACH},
    transmitter::Transmission,
    units::{Seed, Time},
};

/// Decides about one packet after the other, in the order of their transmission.
#[derive(Debug)]
pub(super) struct LossProcess {
    model: Model,
    // xoshiro256++ by name, and not whatever `SmallRng` happens to be: a seed has to mean the same
    // losses on every platform and with every version of the library.
    random: Xoshiro256PlusPlus,
}

#[derive(Debug)]
enum Model {
    None,
    Independent {
        probability: f64,
    },
    GilbertElliott {
        in_bad: bool,
        leave_good: f64,
        leave_bad: f64,
        loss_good: f64,
        loss_bad: f64,
    },
    Poisson {
        per_nano: f64,
        next: Time,
    },
}

impl LossProcess {
    /// Creates a process in its initial state, which only `loss` and `seed` determine. `epoch` is
    /// when its time begins.
    pub(super) fn new(loss: Loss, seed: Seed, epoch: Time) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed.0);
        let model = match loss {
            Loss::None => Model::None,
            Loss::Independent { probability } => Model::Independent { probability },
            Loss::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_in_good,
                loss_in_bad,
            } => {
                // Without any change of state the model stays in the good one.
                let changes = good_to_bad + bad_to_good;
                let bad = if changes > 0.0 {
                    good_to_bad / changes
                } else {
                    0.0
                };
                Model::GilbertElliott {
                    in_bad: chance(&mut random, bad),
                    leave_good: good_to_bad,
                    leave_bad: bad_to_good,
                    loss_good: loss_in_good,
                    loss_bad: loss_in_bad,
                }
            }
            Loss::Poisson { per_second } => {
                let per_nano = per_second / 1e9;
                Model::Poisson {
                    per_nano,
                    next: epoch + exponential(&mut random, per_nano),
                }
            }
        };
        Self { model, random }
    }

    /// Returns whether the packet that is transmitted then is lost.
    pub(super) fn takes(&mut self, packet: Transmission) -> bool {
        let Self { model, random } = self;
        match model {
            Model::None => false,
            Model::Independent { probability } => chance(random, *probability),
            Model::GilbertElliott {
                in_bad,
                leave_good,
                leave_bad,
                loss_good,
                loss_bad,
            } => {
                *in_bad ^= chance(random, if *in_bad { *leave_bad } else { *leave_good });
                chance(random, if *in_bad { *loss_bad } else { *loss_good })
            }
            Model::Poisson { per_nano, next } => {
                // A packet that will never leave is not on the wire.
                if packet.end == Time::NEVER {
                    return false;
                }
                let mut last = None;
                while *next <= packet.end {
                    last = Some(*next);
                    *next = *next + exponential(random, *per_nano);
                }
                last.is_some_and(|event| event + REACH >= packet.start)
            }
        }
    }
}

/// Draws exactly once, whatever `probability` is, so that the later draws stay where they are.
fn chance(random: &mut Xoshiro256PlusPlus, probability: f64) -> bool {
    random.random::<f64>() < probability
}

/// Returns the time to the next event of a Poisson process, at least a nanosecond.
fn exponential(random: &mut Xoshiro256PlusPlus, per_nano: f64) -> Duration {
    let uniform: f64 = random.random();
    let seconds = -(-uniform).ln_1p() / per_nano / 1e9;
    // Without events (a rate of zero) the quotient is infinite, or not a number.
    Duration::try_from_secs_f64(seconds)
        .unwrap_or(Duration::MAX)
        .max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fates of packets of `length` that leave every `gap` nanoseconds.
    fn fates(loss: Loss, seed: u64, packets: u64, gap: u64, length: u64) -> Vec<bool> {
        let mut process = LossProcess::new(loss, Seed(seed), Time::ZERO);
        let packet = |index: u64| Transmission {
            start: Time::from_nanos(index * gap),
            end: Time::from_nanos(index * gap + length),
        };
        (0..packets)
            .map(|index| process.takes(packet(index)))
            .collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_losses() {
        for loss in [
            Loss::independent(0.3),
            Loss::bursts(0.2, 5.0),
            Loss::poisson(300.0),
        ] {
            let first = fates(loss, 7, 10_000, 1_000_000, 1_000_000);
            assert_eq!(
                first,
                fates(loss, 7, 10_000, 1_000_000, 1_000_000),
                "{loss:?}"
            );
            assert_ne!(
                first,
                fates(loss, 8, 10_000, 1_000_000, 1_000_000),
                "{loss:?}"
            );
        }
    }

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // A change here makes every published result impossible to repeat. The numbers are
        // those of an independent implementation of xoshiro256++ seeded by splitmix64.
        let lost: Vec<usize> = fates(Loss::independent(0.1), 42, 100, 1, 1)
            .into_iter()
            .enumerate()
            .filter_map(|(index, lost)| lost.then_some(index))
            .collect();
        assert_eq!(lost, [13, 17, 30, 44, 59, 69, 70, 76, 84]);
    }

    #[test]
    fn certainty_is_certain() {
        assert!(
            fates(Loss::independent(1.0), 1, 1000, 1, 1)
                .into_iter()
                .all(|lost| lost)
        );
        assert!(
            !fates(Loss::independent(0.0), 1, 1000, 1, 1)
                .into_iter()
                .any(|lost| lost)
        );
        assert!(
            !fates(Loss::poisson(0.0), 1, 1000, 1 << 40, 1)
                .into_iter()
                .any(|lost| lost)
        );
    }

    #[test]
    fn poisson_losses_per_second_do_not_depend_on_the_traffic() {
        // 5/s for 2000 s: 10,000 events, fewer losses by the few that meet the same packet.
        let count = |gap, length| {
            let packets = 2_000_000_000_000 / gap;
            fates(Loss::poisson(5.0), 3, packets, gap, length)
                .into_iter()
                .filter(|l| *l)
                .count()
        };
        let saturated = count(1_000_000, 1_000_000);
        let sparse = count(10_000_000, 1_000);
        assert!((9_600..=10_400).contains(&saturated), "{saturated}");
        assert!((9_300..=10_400).contains(&sparse), "{sparse}");
    }

    #[test]
    fn a_poisson_event_in_a_long_pause_takes_nothing() {
        // Packets an hour apart: the chance that an event was within reach is 1 - e^-0.1.
        let lost = fates(Loss::poisson(1.0), 5, 1000, 3_600_000_000_000, 1);
        let lost = lost.into_iter().filter(|lost| *lost).count();
        assert!((60..=135).contains(&lost), "{lost} of 1000");
    }
}
