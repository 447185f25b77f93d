//! What a leg carries if nothing holds it back and all that it sends is taken.

use super::aimd::Aimd;
use super::leg::{Control, Leg};
use super::{cubic, measured, reno};

/// What a leg carries by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// What arrives, packets a second; infinite where nothing bounds it.
    pub throughput: f64,
    /// What the law alone gives, without any cap; none where the control has no law for losses.
    pub law: Option<f64>,
    /// The most that window and link allow, packets a second; infinite if neither is known.
    pub cap: f64,
    /// What binds.
    pub bound: Bound,
    /// How far it is to be trusted.
    pub confidence: Confidence,
    /// Why no further.
    pub reason: &'static str,
    /// Whether it loses more than once in a round trip, of which its control has no law.
    pub is_beyond_law: bool,
}

/// What bounds a leg's throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Its losses.
    Loss,
    /// Its window: the buffers at its ends.
    Window,
    /// Its link's rate.
    Rate,
    /// Nothing that is known.
    Nothing,
}

impl Bound {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Window => "window",
            Self::Rate => "rate",
            Self::Nothing => "nothing",
        }
    }
}

/// How far a figure is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Confidence {
    /// No law: what was measured elsewhere.
    Measured,
    /// Its order of magnitude.
    Low,
    /// Tens of per cent.
    Fair,
    /// Some per cent.
    High,
}

impl Confidence {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured elsewhere",
            Self::Low => "low",
            Self::Fair => "fair",
            Self::High => "high",
        }
    }
}

/// The round trip below which PFTK's timeouts, of 200 ms and more, weigh more than they do with Linux,
/// which finds most losses of a tail without one (RACK-TLP, RFC 8985), seconds.
const SHORT: f64 = 0.05;

/// Why nothing is to be trusted where losses come faster than round trips.
const BEYOND: &str =
    "more than one loss in a round trip, which a sender takes for one: no law is for that";

impl Leg {
    /// Gives what the leg carries by itself.
    #[must_use]
    pub fn alone(&self) -> Alone {
        let by_window = self
            .window
            .map_or(f64::INFINITY, |window| window / self.rtt);
        // A packet that is lost has cost rate.
        let by_rate = self.rate.map_or(f64::INFINITY, |rate| {
            (rate * (1.0 - self.loss.per_packet) - self.loss.per_second).max(0.0)
        });
        let cap = by_window.min(by_rate);
        let capped_by = match (cap.is_finite(), by_window < by_rate) {
            (false, _) => Bound::Nothing,
            (true, true) => Bound::Window,
            (true, false) => Bound::Rate,
        };
        let (law, bound) = match self.control {
            Control::Bbr => (
                Some(cap * measured::bbr_share(self.loss.share(cap))),
                capped_by,
            ),
            Control::FixedRate => (None, capped_by),
            Control::Reno | Control::Cubic => (Some(self.by_losses()), capped_by),
        };
        let throughput = law.map_or(cap, |law| law.min(cap));
        let bound = match self.control {
            Control::Reno | Control::Cubic if throughput < cap => Bound::Loss,
            _ => bound,
        };
        let is_beyond_law = self.is_beyond_law(throughput);
        let (confidence, reason) = match is_beyond_law {
            true => (Confidence::Low, BEYOND),
            false => self.trust(throughput),
        };
        Alone {
            throughput,
            law,
            cap,
            bound,
            confidence,
            reason,
            is_beyond_law,
        }
    }

    /// Says whether more than one loss comes in a round trip at so many packets a second, λR + pXR, where losses
    /// count: a sender takes them for one, and all laws are of losses that come one by one.
    fn is_beyond_law(&self, throughput: f64) -> bool {
        let moves = matches!(self.control, Control::Reno | Control::Cubic);
        let a_second = match self.loss.per_packet > 0.0 {
            true => self.loss.per_second + self.loss.per_packet * throughput,
            false => self.loss.per_second,
        };
        moves && a_second * self.rtt > 1.0
    }

    /// The mean rate that losses leave, without any cap.
    fn by_losses(&self) -> f64 {
        let without = match self.control {
            Control::Cubic => {
                let friendly = cubic::friendly(self.rtt, self.per_ack).mean(self.loss);
                friendly.max(cubic::curve(self.rtt, self.loss))
            }
            _ => reno::aimd(self.rtt, self.per_ack).mean(self.loss),
        };
        reno::with_timeouts(without, self.rtt, self.loss, self.per_ack)
    }

    /// The additive increase and multiplicative decrease with the mean that the leg's law gives: what stands
    /// for the leg where its buffers are looked at. None where the control is not moved by losses.
    #[must_use]
    pub fn aimd(&self) -> Option<Aimd> {
        let mean = match self.control {
            Control::Reno | Control::Cubic => self.by_losses(),
            Control::FixedRate | Control::Bbr => return None,
        };
        if !mean.is_finite() {
            return Some(reno::aimd(self.rtt, self.per_ack));
        }
        let beta = match self.control {
            Control::Cubic => cubic::BETA,
            _ => reno::BETA,
        };
        Some(Aimd::with_mean(beta, self.loss, mean))
    }

    fn trust(&self, throughput: f64) -> (Confidence, &'static str) {
        let share = self.loss.share(throughput);
        match self.control {
            Control::Bbr => (
                Confidence::Measured,
                "bbr: no law; what was measured at 100 Mbit/s and 10 ms, from 5 to 20 % of loss",
            ),
            Control::FixedRate => (
                Confidence::High,
                "the link's rate less what it loses, if nobody else uses it",
            ),
            Control::Reno | Control::Cubic if self.loss.is_none() => {
                (Confidence::High, "nothing is lost: the cap alone")
            }
            Control::Reno | Control::Cubic if share > reno::RARE && self.rtt < SHORT => (
                Confidence::Low,
                "timeouts of 200 ms beside a short round trip: PFTK has more of them than Linux",
            ),
            Control::Reno | Control::Cubic if share > reno::RARE => {
                (Confidence::Fair, "PFTK, for losses from 1 % on")
            }
            Control::Cubic => (
                Confidence::Fair,
                "RFC 9438, for losses at equal distances; where CUBIC is as Reno, for random ones",
            ),
            Control::Reno => (Confidence::High, "the square root, for random losses"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::{Loss, reno};
    use super::*;

    fn reno(rtt: f64, loss: Loss) -> Leg {
        Leg {
            loss,
            control: Control::Reno,
            ..Leg::new(rtt)
        }
    }

    #[rstest]
    // X̄ and Ȳ of Baccelli et al., Fig. 19.2, 19.3, 19.4 and Table 19.1, with losses over time.
    #[case(0.1, Loss::per_second(0.3), 666.7)]
    #[case(0.09, Loss::per_second(0.3), 823.0)]
    #[case(0.09, Loss::per_second(0.4), 617.3)]
    #[case(0.03, Loss::per_second(0.4), 5555.6)]
    #[case(0.04, Loss::per_second(0.4), 3125.0)]
    #[case(0.08, Loss::per_second(0.2), 1562.5)]
    #[case(0.02, Loss::per_second(0.4), 12_500.0)]
    fn the_papers_means(#[case] rtt: f64, #[case] loss: Loss, #[case] wanted: f64) {
        let alone = reno(rtt, loss).alone();
        assert!((alone.throughput - wanted).abs() < 0.1, "{alone:?}");
        assert_eq!(
            (alone.bound, alone.confidence),
            (Bound::Loss, Confidence::High)
        );
    }

    #[test]
    fn fig_19_5_has_its_mean_where_there_are_no_timeouts() {
        // 60 ms and 3 % of packets on both legs: 126 packets/s by eq. 19.3.
        let loss = Loss::per_packet(0.03);
        let mean = reno::aimd(0.06, 1.0).mean(loss);
        assert!((mean - 126.0).abs() < 0.1, "{mean}");
        // A loss in thirty packets is not without them.
        let alone = reno(0.06, loss).alone().throughput;
        assert!(alone < 0.9 * mean, "{alone}");
    }

    #[test]
    fn what_binds_is_named() {
        let leg = Leg {
            rate: Some(8333.0),
            ..reno(0.02, Loss::per_second(0.4))
        };
        assert_eq!(leg.alone().bound, Bound::Rate);
        let small = Leg {
            window: Some(20.0),
            ..leg
        };
        let alone = small.alone();
        assert_eq!((alone.bound, alone.throughput), (Bound::Window, 1000.0));
        let free = Leg::new(0.02).alone();
        assert_eq!(free.bound, Bound::Nothing);
        assert!(free.throughput.is_infinite());
    }

    #[rstest]
    #[case(Control::Reno, 0.04, Loss::per_second(20.0), false)]
    #[case(Control::Reno, 0.04, Loss::per_second(30.0), true)]
    #[case(Control::Cubic, 10.0, Loss::per_second(100.0), true)]
    // 1.05 R^¾ p^¼ for CUBIC, and for Reno 1.31 √p, which is never above 1 where there are no timeouts.
    #[case(Control::Cubic, 10.0, Loss::per_packet(0.009), true)]
    #[case(Control::Cubic, 1.0, Loss::per_packet(0.009), false)]
    #[case(Control::Reno, 10.0, Loss::per_packet(0.009), false)]
    // What losses do not move has no round trips.
    #[case(Control::FixedRate, 10.0, Loss::per_second(100.0), false)]
    fn of_several_losses_in_a_round_trip_there_is_no_law(
        #[case] control: Control,
        #[case] rtt: f64,
        #[case] loss: Loss,
        #[case] is_beyond: bool,
    ) {
        let leg = Leg {
            control,
            rate: Some(1e6),
            ..reno(rtt, loss)
        };
        let alone = leg.alone();
        assert_eq!(alone.is_beyond_law, is_beyond, "{alone:?}");
        assert_eq!(alone.reason == BEYOND, is_beyond);
        assert!(!is_beyond || alone.confidence == Confidence::Low);
    }

    #[test]
    fn what_is_lost_has_cost_rate() {
        let leg = Leg {
            rate: Some(1000.0),
            loss: Loss::per_packet(0.2),
            control: Control::FixedRate,
            ..Leg::new(0.01)
        };
        assert_eq!(leg.alone().throughput, 800.0);
        let bbr = Leg {
            control: Control::Bbr,
            loss: Loss::per_packet(0.1),
            ..leg
        };
        let alone = bbr.alone();
        assert_eq!(alone.confidence, Confidence::Measured);
        assert!((alone.throughput / 900.0 - measured::bbr_share(0.1)).abs() < 0.05);
    }

    #[test]
    fn cubic_is_as_reno_on_short_paths_and_faster_on_long_clean_ones() {
        let at = |control, rtt, p| {
            let leg = Leg {
                control,
                loss: Loss::per_packet(p),
                ..Leg::new(rtt)
            };
            leg.alone().throughput
        };
        let short = at(Control::Cubic, 0.01, 1e-3) / at(Control::Reno, 0.01, 1e-3);
        assert!((0.95..1.05).contains(&short), "{short}");
        assert!(at(Control::Cubic, 0.2, 1e-6) > 5.0 * at(Control::Reno, 0.2, 1e-6));
    }

    #[test]
    fn the_aimd_that_stands_for_a_leg_has_its_mean() {
        for control in [Control::Reno, Control::Cubic] {
            for p in [1e-5, 1e-3, 0.05] {
                let leg = Leg {
                    control,
                    loss: Loss::per_packet(p),
                    ..Leg::new(0.08)
                };
                let mean = leg.aimd().unwrap().mean(leg.loss);
                assert!((mean / leg.alone().throughput - 1.0).abs() < 1e-9);
            }
        }
    }
}
