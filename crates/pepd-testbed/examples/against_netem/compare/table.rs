//! The comparison: settings, figures and what is demanded of them.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use pepd_testbed::link::{Loss, Rate, Seed};

use super::flow::{Flow, round_trip};
use super::losses::Fates;
use super::path::{Emulator, Path, Setting};
use super::statistics::{Test, exponential, frequency, runs};

/// The distance that goodputs may be apart, as a share of `netem`'s.
const GOODPUT: f64 = 0.05;
/// The distance that round trips may be apart.
const RTT: Duration = Duration::from_millis(1);
/// The number of times that a case is measured at most.
const ROUNDS: usize = 3;
/// The number of packets that the statistics of losses are about.
const PACKETS: u32 = 100_000;
/// The time that a flow runs before it is measured, and how many round trips on top: until then it
/// has recovered from the losses at the end of slow start, so that no hole is filled during the
/// measurement with what arrived before it.
const WARM_UP: (Duration, u32) = (Duration::from_secs(5), 25);
/// The bits that a TCP segment of 1500 bytes carries (RFC 7323 timestamps).
const SEGMENT_BITS: f64 = 1448.0 * 8.0;

/// One flow over one path.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The path.
    pub setting: Setting,
    /// The sender's congestion control.
    pub congestion: &'static str,
    /// A quarter of the time will do.
    brief: bool,
}

impl Case {
    /// Returns a case: rate in Mbit/s, RTT in ms, loss from 0 to 1.
    pub const fn new(mbit: u64, rtt: u64, loss: f64, congestion: &'static str) -> Self {
        let loss = if loss > 0.0 {
            Loss::independent(loss)
        } else {
            Loss::None
        };
        Self {
            setting: Setting::new(Rate::mbit(mbit), Duration::from_millis(rtt), loss),
            congestion,
            brief: false,
        }
    }

    /// Returns the same, measured for a quarter of the time.
    pub const fn brief(self) -> Self {
        Self {
            brief: true,
            ..self
        }
    }

    /// Measures both. If they differ it does so again, with other losses, and compares the
    /// means: cubic among losses varies by some 2 % from one run to the next, so that chance
    /// alone can put two single runs further apart than is tolerated, but not three pairs.
    ///
    /// # Errors
    /// When a path cannot be built, or a flow breaks.
    pub fn compare(&self) -> Result<Row> {
        let (mut netem, mut link) = (Vec::new(), Vec::new());
        loop {
            netem.push(self.measure(Emulator::Netem)?);
            let seed = Seed(netem.len() as u64);
            link.push(self.measure(Emulator::Link(seed))?);
            let row = Row {
                case: *self,
                netem: Figures::mean(&netem),
                link: Figures::mean(&link),
            };
            if row.passes() || netem.len() == ROUNDS {
                return Ok(row);
            }
        }
    }

    /// Measures one.
    ///
    /// # Errors
    /// When the path cannot be built, or the flow breaks.
    pub fn measure(&self, emulator: Emulator) -> Result<Figures> {
        let path = Path::build(emulator, &self.setting)?;
        let rtt = round_trip(&path, 20)?;
        let flow = Flow {
            congestion: self.congestion,
            warm_up: WARM_UP.0 + self.setting.rtt * WARM_UP.1,
            span: self.span(),
        };
        let goodput = flow.goodput(&path)?;
        let late = path.report()?.is_some_and(|report| report.fell_behind());
        Ok(Figures { goodput, rtt, late })
    }

    /// Returns a time long enough for chance to be small beside what is tolerated.
    fn span(&self) -> Duration {
        let rate = self.setting.rate.as_bits_per_second() as f64;
        let (packets, speed) = match self.setting.loss {
            // A sender that takes each loss for congestion: √(3/2p) segments a round trip
            // (Mathis et al. 1997, equation 3). Four thousand losses leave some 2 % to chance.
            Loss::Independent { probability } if self.congestion == "cubic" => {
                let window = (1.5 / probability).sqrt();
                let speed = window * SEGMENT_BITS / self.setting.rtt.as_secs_f64();
                (200_000.0, speed.min(rate))
            }
            _ => (80_000.0, rate),
        };
        let packets = if self.brief { packets / 4.0 } else { packets };
        Duration::from_secs_f64(packets * SEGMENT_BITS / speed)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting {
            rate, rtt, loss, ..
        } = self.setting;
        let percent = match loss {
            Loss::Independent { probability } => probability * 100.0,
            _ => 0.0,
        };
        let rtt = rtt.as_millis();
        write!(
            f,
            "{rate:>7}  {rtt:>3} ms  {percent:>3} %  {:<5}",
            self.congestion
        )
    }
}

/// What was measured on one path.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The goodput, in bits per second.
    pub goodput: f64,
    /// The round trip of a full packet on the idle path.
    pub rtt: Duration,
    /// The link says that it fell behind.
    pub late: bool,
}

impl Figures {
    /// Returns the mean of at least one; late if any is.
    fn mean(all: &[Self]) -> Self {
        let count = all.len() as f64;
        let rtt: Duration = all.iter().map(|one| one.rtt).sum();
        Self {
            goodput: all.iter().map(|one| one.goodput).sum::<f64>() / count,
            rtt: rtt.div_f64(count),
            late: all.iter().any(|one| one.late),
        }
    }
}

/// A case on both paths.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    case: Case,
    netem: Figures,
    link: Figures,
}

impl Row {
    /// Returns whether the two agree.
    pub fn passes(&self) -> bool {
        !self.link.late
            && self.goodput_difference().abs() <= GOODPUT
            && self.rtt_difference() <= RTT
    }

    /// Returns the link's goodput above `netem`'s, as a share of it.
    fn goodput_difference(&self) -> f64 {
        self.link.goodput / self.netem.goodput - 1.0
    }

    fn rtt_difference(&self) -> Duration {
        self.link.rtt.abs_diff(self.netem.rtt)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, netem, link } = self;
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        write!(
            f,
            "{case} | {:6.2}  {:6.2}  {:+5.2} %  | {:7.3}  {:7.3}  {:6.3}  {}",
            netem.goodput / 1e6,
            link.goodput / 1e6,
            self.goodput_difference() * 100.0,
            ms(netem.rtt),
            ms(link.rtt),
            ms(link.rtt) - ms(netem.rtt),
            if link.late {
                "LATE"
            } else {
                verdict(self.passes())
            },
        )
    }
}

/// A statistic of losses, by name.
#[derive(Clone, Debug)]
pub struct Line {
    name: String,
    figures: String,
    good: bool,
}

impl Line {
    /// Returns whether it is as demanded.
    pub const fn passes(&self) -> bool {
        self.good
    }

    fn tested(name: impl Into<String>, lost: usize, of: usize, test: Test) -> Self {
        Self {
            name: name.into(),
            figures: format!(
                "{lost} of {of} lost, {:+.2} (limit {})",
                test.value, test.limit
            ),
            good: test.passes(),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            figures,
            good,
        } = self;
        write!(f, "{name:<34} {figures:<48} {}", verdict(*good))
    }
}

/// Losses as the path's two ends see them: frequency and runs of both emulators, the times
/// between the link's Poisson losses, and that a seed determines the link's.
///
/// # Errors
/// When a path cannot be built.
pub fn losses(emulators: &[(&str, Emulator)]) -> Result<Vec<Line>> {
    const PROBABILITY: f64 = 0.02;
    let mut lines = Vec::new();
    for (name, emulator) in emulators {
        let fates = observe(*emulator, Loss::independent(PROBABILITY), PACKETS, 10_000.0)?;
        let (of, count) = (fates.lost.len(), count(&fates));
        let share = frequency(&fates.lost, PROBABILITY);
        lines.push(Line::tested(
            format!("{name}: frequency, in σ"),
            count,
            of,
            share,
        ));
        let runs = runs(&fates.lost);
        lines.push(Line::tested(format!("{name}: runs, in σ"), count, of, runs));
    }
    lines.push(poisson()?);
    lines.push(seeds()?);
    Ok(lines)
}

fn poisson() -> Result<Line> {
    const LAMBDA: f64 = 20.0;
    let fates = observe(
        Emulator::Link(Seed(2)),
        Loss::poisson(LAMBDA),
        PACKETS,
        2_000.0,
    )?;
    let test = exponential(&fates.gaps(), LAMBDA);
    let name = "link: Poisson gaps, KS D√n";
    Ok(Line::tested(name, count(&fates), fates.lost.len(), test))
}

fn seeds() -> Result<Line> {
    let with = |seed| {
        observe(
            Emulator::Link(Seed(seed)),
            Loss::bursts(0.02, 3.0),
            PACKETS / 10,
            10_000.0,
        )
    };
    let (first, again, other) = (with(7)?, with(7)?, with(8)?);
    let good = first.lost == again.lost && first.lost != other.lost;
    let counts = [&first, &again, &other].map(count);
    let figures = format!(
        "seeds 7, 7, 8 lose {}, {}, {}",
        counts[0], counts[1], counts[2]
    );
    let name = "link: same seed, same losses".to_owned();
    Ok(Line {
        name,
        figures,
        good,
    })
}

fn observe(emulator: Emulator, loss: Loss, packets: u32, per_second: f64) -> Result<Fates> {
    let setting = Setting {
        rate: Rate::mbit(100),
        rtt: Duration::from_millis(20),
        loss,
        // It holds them all, so that none is lost for want of room when the sender is late.
        queue: packets.into(),
    };
    let path = Path::build(emulator, &setting)?;
    let fates = Fates::observe(&path, packets, per_second)?;
    if let Some(report) = path.report()? {
        // Of its lateness nothing depends here.
        ensure!(report.a_to_b.overruns == 0, "the link overran: {report:?}");
        let lost = usize::try_from(report.a_to_b.lost.packets)?;
        ensure!(
            report.a_to_b.offered.packets == u64::from(packets),
            "other packets were on the link: {report:?}"
        );
        ensure!(
            lost == count(&fates),
            "packets were lost elsewhere: {report:?}"
        );
    }
    Ok(fates)
}

fn count(fates: &Fates) -> usize {
    fates.lost.iter().filter(|lost| **lost).count()
}

fn verdict(good: bool) -> &'static str {
    if good { "ok" } else { "DIFFERS" }
}
