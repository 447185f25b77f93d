//! One measurement: a path, a proxy on it, traffic, and what came of it.

use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pepd_testbed::link::Report;

use super::begun::Begun;
use super::limit::{PACKET_BITS, limit};
use super::sampler::Sampler;
use crate::paper::{
    Browsing, Experiment, Leg, Point, Printed, Timing, Variant, Watching, Workload,
};
use crate::path::{Path, Proxy};
use crate::results::{Metric, PaperValue, Record, Sample, Trace};
use crate::stats::{fairness, mean, quantile, real, real64};
use crate::traffic::bulk::{Arrivals, BIN, Flows, PORT, sleep_until, wait_for_tick};
use crate::traffic::web::{self, Server};
use crate::traffic::{keystrokes, video};

/// The time by which outages are later in each repeat.
const OUTAGE_SHIFT: Duration = Duration::from_millis(700);
/// The interval at which `--flows` tells what was reached.
const STEP: Duration = Duration::from_secs(2);
/// The interval at which a trace samples the sockets.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// One repeat of one variant at one point.
pub struct Case<'a> {
    /// The experiment that it is part of.
    pub experiment: &'a Experiment,
    /// The point on the axis.
    pub point: &'a Point,
    /// The variant between the hosts.
    pub variant: &'a Variant,
    /// The times of its warm-up and measurement.
    pub timing: Timing,
    /// The repeat, from 0 on.
    pub repeat: u32,
    /// The seed of the links' losses.
    pub seed: u64,
    /// Whether to tell what bulk flows reached over time, and what pepd says of them.
    pub flows: bool,
}

impl Case<'_> {
    /// Runs the measurement, and returns its values and, of a trace, what happened over time.
    ///
    /// # Errors
    /// When the path or the proxy cannot be set up, or the proxy did not do its work.
    pub fn run(
        &self,
        pepd: &FilePath,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Vec<Record>, Option<Trace>)> {
        let mut legs = self.experiment.legs(self.point);
        // Where a sender is in its back-off when the link returns is chance: a repeat is another.
        for outage in legs.iter_mut().flat_map(|leg| &mut leg.outages) {
            outage.start += OUTAGE_SHIFT * self.repeat;
        }
        let path = Path::open(&legs, self.experiment.boxes, self.seed)?;
        if let Some(bytes) = self.point.host_window.or(self.experiment.host_window) {
            path.limit_windows(bytes)?;
        }
        if self.experiment.no_window_scaling {
            path.forbid_window_scaling()?;
        }
        if let Some(policer) = self.point.policer {
            path.police(policer)?;
        }
        let mut proxy = Proxy::start(self.variant, self.point, &path, pepd)?;
        wait_for_tick()?;
        let flows = self.point.flows;
        let mut tell = |arrivals: Option<&Arrivals>| {
            let texts = match arrivals {
                _ if !self.flows => Vec::new(),
                None => proxy.flows(&path),
                Some(arrivals) => vec![self.over_time(arrivals)],
            };
            texts.iter().for_each(|text| progress(text));
        };
        let (values, samples) = match self.experiment.workload {
            Workload::Bulk {
                flows: usual,
                packets,
                per_flow,
            } => {
                let flows = flows.unwrap_or(usual);
                let begin = || Begun::now(&path, &proxy, &legs);
                let values = self.bulk(&path, flows, packets, per_flow, &begin, &mut tell)?;
                (values, None)
            }
            Workload::Trace => self.trace(&path, &|| Begun::now(&path, &proxy, &legs))?,
            Workload::Keystrokes { every, wait } => (self.keystrokes(&path, every, wait)?, None),
            Workload::Web(page) => (self.web(&path, page, flows.unwrap_or(0))?, None),
            Workload::Video(video) => (self.video(&path, video, flows.unwrap_or(0))?, None),
        };
        proxy.check(&path)?;
        let link = LinkState::of(&path)?;
        let records = values
            .into_iter()
            .map(|(metric, value)| self.record(&legs, link, metric, value));
        let trace = samples.map(|samples| Trace {
            x: self.point.x,
            variant: self.variant.name.clone(),
            samples,
        });
        Ok((records.collect(), trace))
    }

    fn record(&self, legs: &[Leg; 2], link: LinkState, metric: Metric, value: f64) -> Record {
        Record {
            x: self.point.x,
            variant: self.variant.name.clone(),
            repeat: self.repeat,
            seed: self.seed,
            metric,
            value,
            limit: limit(
                self.experiment,
                self.point,
                legs,
                self.timing.window,
                metric,
            ),
            paper: self.printed(metric),
            far_loss: link.far_loss,
            link_lag: link.lag,
            host_requests: link.host_requests,
            fell_behind: link.fell_behind,
        }
    }

    fn bulk(
        &self,
        path: &Path,
        flows: usize,
        packets: bool,
        per_flow: bool,
        begin: &dyn Fn() -> Result<Begun>,
        tell: &mut dyn FnMut(Option<&Arrivals>),
    ) -> Result<Vec<(Metric, f64)>> {
        let Timing {
            warm_up, window, ..
        } = self.timing;
        let foreign = self.point.foreign.as_ref();
        let foreign = foreign
            .map(|control| Flows::foreign(path, control))
            .transpose()?;
        let running = Flows::start(path, flows, &self.variant.sender)?;
        sleep_until(running.epoch() + warm_up);
        let begun = begin()?;
        let begin = running.epoch() + warm_up;
        let used = if self.experiment.queue && warm_up.is_zero() {
            self.used(path, begin)?
        } else {
            None
        };
        sleep_until(begin + window);
        begun.end()?;
        let [_, far] = path.report()?;
        tell(None);
        let arrivals = running.stop();
        tell(Some(&arrivals));
        let shares = arrivals.goodput(warm_up, window);
        let sum: f64 = shares.iter().sum();
        let mut values = vec![if packets {
            (Metric::Packets, sum / PACKET_BITS)
        } else if per_flow {
            (Metric::PerFlow, sum / real(flows))
        } else {
            (Metric::Goodput, sum)
        }];
        if let Some(index) = fairness(&shares).filter(|_| flows > 1) {
            values.push((Metric::Fairness, index));
        }
        if self.experiment.queue {
            values.extend(self.queue(&far, &arrivals));
            values.extend(used.map(|time| (Metric::Used, time.as_secs_f64())));
        }
        if let Some(foreign) = foreign {
            // Its bins are counted from its own start.
            let earlier = begin.saturating_duration_since(foreign.epoch());
            let theirs: f64 = foreign.stop().goodput(earlier, window).iter().sum();
            values.push((Metric::Foreign, theirs / (theirs + sum)));
        }
        Ok(values)
    }

    /// What the far leg's queue did, and how soon the flows had nine tenths of the limit.
    fn queue(&self, far: &Report, arrivals: &Arrivals) -> Vec<(Metric, f64)> {
        let legs = self.experiment.legs(self.point);
        let window = self.timing.window;
        let trip = legs[1].mean_rate(window) / 8.0 * legs[1].rtt.as_secs_f64();
        let dropped = real64(far.a_to_b.dropped.bytes);
        let mut values = vec![
            (Metric::Queue95, far.a_to_b.queue_delay.p95.as_secs_f64()),
            (Metric::Dropped, dropped / trip),
        ];
        let limit = limit(self.experiment, self.point, &legs, window, Metric::Goodput);
        // Where the rate changes there is no one rate to be found.
        let steady = limit.filter(|_| legs[1].varying.is_none());
        let found = steady.and_then(|limit| arrivals.reached(0.9 * limit));
        values.extend(found.map(|time| (Metric::Found, time.as_secs_f64())));
        values
    }

    /// Watches how soon nine tenths of the far leg are used, in the window: the middle of the first two [`BIN`]s in which
    /// they are. What was lost behind the link and is sent again counts there, and what waits at the receiver for it.
    fn used(&self, path: &Path, begin: Instant) -> Result<Option<Duration>> {
        let window = self.timing.window;
        let [_, far] = self.experiment.legs(self.point);
        let wanted = 0.9 * far.mean_rate(window) / 8.0 * (2 * BIN).as_secs_f64();
        let mut sent = [0.0; 2];
        let mut time = BIN;
        while time <= window {
            sleep_until(begin + time);
            let [_, far] = path.report()?;
            let now = real64(far.a_to_b.sent.bytes);
            if now - sent[0] >= wanted {
                return Ok(Some(time.saturating_sub(BIN)));
            }
            sent = [sent[1], now];
            time += BIN;
        }
        Ok(None)
    }

    fn over_time(&self, arrivals: &Arrivals) -> String {
        let Timing {
            warm_up, window, ..
        } = self.timing;
        let mut text = format!("    Mbit/s every {} s:", STEP.as_secs());
        let mut from = Duration::ZERO;
        while from + STEP <= warm_up + window {
            let sum: f64 = arrivals.goodput(from, STEP).iter().sum();
            text.push_str(&format!(" {:.1}", sum / 1e6));
            from += STEP;
        }
        text
    }

    fn keystrokes(
        &self,
        path: &Path,
        every: Duration,
        wait: Duration,
    ) -> Result<Vec<(Metric, f64)>> {
        let count = self.timing.window.as_nanos() / every.as_nanos();
        let trips = keystrokes::type_away(
            path,
            usize::try_from(count)?,
            every,
            wait,
            &self.variant.sender,
        )?;
        let quantile = |q| quantile(&trips, q).context("no keystroke came back");
        Ok(vec![
            (Metric::RoundTrip50, quantile(0.5)?),
            (Metric::RoundTrip99, quantile(0.99)?),
        ])
    }

    /// Pages beside `flows` downloads.
    fn web(&self, path: &Path, page: Browsing, flows: usize) -> Result<Vec<(Metric, f64)>> {
        let times = self.beside(path, flows, |window| web::browse(path, page, window))?;
        let median = quantile(&times, 0.5).context("no page came")?;
        Ok(vec![
            (Metric::PageTime, mean(&times)),
            (Metric::PageTime50, median),
        ])
    }

    /// Videos beside `flows` downloads.
    fn video(&self, path: &Path, video: Watching, flows: usize) -> Result<Vec<(Metric, f64)>> {
        let seen = self.beside(path, flows, |window| video::watch(path, video, window))?;
        let satisfied = seen.iter().filter(|viewing| viewing.satisfied()).count();
        let buffering: Vec<_> = seen
            .iter()
            .map(|viewing| viewing.buffering.as_secs_f64())
            .collect();
        Ok(vec![
            (Metric::Satisfied, real(satisfied) / real(seen.len())),
            (Metric::Buffering, mean(&buffering)),
        ])
    }

    /// Does `work` for the window while `flows` downloads go on, from after their warm-up.
    fn beside<T>(
        &self,
        path: &Path,
        flows: usize,
        work: impl FnOnce(Duration) -> Result<T>,
    ) -> Result<T> {
        let _server = Server::start(path, &self.variant.sender)?;
        let running = Flows::start(path, flows, &self.variant.sender)?;
        sleep_until(running.epoch() + self.timing.warm_up);
        path.restart()?;
        let done = work(self.timing.window);
        let _ = running.stop();
        done
    }

    /// One flow, with the state of both legs' sockets.
    #[allow(
        clippy::type_complexity,
        reason = "the values, and what they come from"
    )]
    fn trace(
        &self,
        path: &Path,
        begin: &dyn Fn() -> Result<Begun>,
    ) -> Result<(Vec<(Metric, f64)>, Option<Vec<Sample>>)> {
        let Timing {
            warm_up, window, ..
        } = self.timing;
        let running = Flows::start(path, 1, &self.variant.sender)?;
        let epoch = running.epoch();
        let sampler = |netns| Sampler::start(netns, PORT, epoch, SAMPLE_INTERVAL);
        let samplers = [sampler(&path.sender)?, sampler(&path.hb)?];
        sleep_until(epoch + warm_up);
        let begun = begin()?;
        sleep_until(epoch + warm_up + window);
        begun.end()?;
        let [sender, hb] = samplers.map(Sampler::stop);
        let [sender, hb] = [sender?, hb?];
        let shares = running.stop().goodput(warm_up, window);
        // The paper's traces are of congestion avoidance too (section 19.2.2).
        let looks = sender
            .iter()
            .zip(&hb)
            .filter(|([_, sender], _)| sender.time >= warm_up);
        let samples = looks.map(|([_, sender], [from, to])| Sample {
            time: (sender.time - warm_up).as_secs_f64(),
            near_cwnd: f64::from(sender.cwnd),
            far_cwnd: f64::from(to.cwnd),
            buffer: f64::from(from.receive_queue + to.unsent) * 8.0 / PACKET_BITS,
        });
        let values = vec![(Metric::Packets, shares.iter().sum::<f64>() / PACKET_BITS)];
        Ok((values, Some(samples.collect())))
    }

    fn printed(&self, metric: Metric) -> Option<PaperValue> {
        let here = |printed: &&Printed| {
            let name = printed.variant.as_ref();
            printed.x == Some(self.point.x)
                && printed.over.is_none()
                && name.is_none_or(|name| *name == self.variant.name)
        };
        let mut printed = self.experiment.printed.iter().filter(here);
        let fits = |printed: &&Printed| match metric {
            Metric::Goodput => printed.unit == "bit/s",
            Metric::Packets => printed.unit == "packets/s",
            _ => false,
        };
        printed.find(fits).map(|printed| PaperValue {
            value: printed.value,
            source: printed.source.clone(),
        })
    }
}

/// What the emulated links did during a measurement.
#[derive(Clone, Copy)]
struct LinkState {
    /// The share of packets that the far leg lost, of those sent to the receiver.
    far_loss: f64,
    /// The time by which the slowest direction was late with one packet in a hundred, in seconds.
    lag: f64,
    host_requests: Option<u64>,
    fell_behind: bool,
}

impl LinkState {
    fn of(path: &Path) -> Result<Self> {
        let [near, far] = path.report()?;
        let sent = far.a_to_b.sent.packets;
        let lost = far.a_to_b.lost.packets + far.a_to_b.cut.packets;
        let directions = [&near.a_to_b, &near.b_to_a, &far.a_to_b, &far.b_to_a];
        let lag = directions
            .map(|direction| direction.lag.p99.as_secs_f64())
            .into_iter()
            .fold(0.0, f64::max);
        Ok(Self {
            far_loss: if sent == 0 {
                0.0
            } else {
                real64(lost) / real64(sent)
            },
            lag,
            host_requests: path.host_requests(),
            fell_behind: near.fell_behind() || far.fell_behind(),
        })
    }
}
