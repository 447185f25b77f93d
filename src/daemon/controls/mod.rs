//! `congestion = "fixed-rate"` and `"find-rate"`: the controls of the legs that ask for them, and
//! what finds the rate of the latter ([`finder`]).

mod finder;
mod found;
mod second;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use pepd_admin::wire::{FlowSnapshot, FoundRate, PathPoint};
use pepd_bpf::{Control, Error, Name, NetworkNamespace, Steering, Use};
use pepd_config::{Config, Congestion, Leg};
use pepd_model::control_choice::Chosen;
use pepd_relay::ChosenControl;

use self::finder::Finder;

use crate::daemon::remembered::{Learned, Legs};
use crate::exit::{Failure, Result};

/// The registered controls, by leg. They go when this is dropped; connections that still have
/// them keep them.
#[derive(Debug, Default)]
pub struct Controls {
    by_leg: BTreeMap<String, Own>,
    /// What is chosen for the legs with `congestion = "auto"`.
    chosen: Mutex<BTreeMap<String, ChosenControl>>,
    /// Why find-rate cannot be chosen for one of them that has a link of its own.
    lacking: BTreeMap<String, Error>,
    /// What opens windows after an outage, or why nothing does.
    resume: Option<std::result::Result<Control, Error>>,
}

/// A leg's control of pepd's own.
#[derive(Debug)]
struct Own {
    control: Control,
    of: Congestion,
    /// What a rate is found by, until it is being looked for.
    steering: Option<Steering>,
    finder: Option<Finder>,
}

impl Controls {
    /// Registers a control for each leg that asks for one, in place of whatever a crash left.
    /// Needs capabilities that pepd gives up at its start. What opens windows after an outage goes on, where
    /// a daemon of the same program has `left` it: the kernel takes its time to let it go.
    pub fn register(config: &Config, left: Option<OwnedFd>) -> Result<Self> {
        let namespace = namespace()?;
        let resume = left.and_then(|link| Control::take_over(namespace, link));
        match pepd_bpf::remove_left(namespace, resume.as_ref()) {
            Ok(_) => {}
            // It stays, or is adopted; a leg that needs a control and gets none is reported below.
            Err(Error::NotPermitted { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let (mut by_leg, mut lacking) = (BTreeMap::new(), BTreeMap::new());
        // There are fewer: pepd-config refuses a file with more than 249.
        for (number, leg) in (0..=u8::MAX).zip(&config.legs) {
            let of = match &leg.congestion {
                Some(of @ Congestion::FixedRate) => (of, Use::GivenRate),
                Some(of @ Congestion::FindRate) => (of, Use::FoundRate),
                Some(Congestion::Auto) if has_own_link(leg) => {
                    (&Congestion::FindRate, Use::FoundRate)
                }
                Some(Congestion::Kernel(_) | Congestion::Auto) | None => continue,
            };
            let (control, steering) = match register(namespace, number, of.1) {
                Ok(registered) => registered,
                // It does without.
                Err(error) if leg.congestion == Some(Congestion::Auto) => {
                    lacking.insert(leg.name.clone(), error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let own = Own {
                control,
                of: of.0.clone(),
                steering,
                finder: None,
            };
            by_leg.insert(leg.name.clone(), own);
        }
        let resume = match resume {
            Some(control) => Ok(control),
            None => pepd_bpf::register(namespace, 0, Use::Resume),
        };
        let resume = Some(resume);
        Ok(Self {
            by_leg,
            chosen: Mutex::default(),
            lacking,
            resume,
        })
    }

    /// Starts to look for the rates that are to be found, with what was learned before.
    pub fn find(&mut self, config: &Config, learned: &Legs) -> Result {
        for leg in &config.legs {
            let own = self.by_leg.get_mut(&leg.name);
            let Some((own, steering)) = own.and_then(|own| {
                let steering = own.steering.take()?;
                Some((own, steering))
            }) else {
                continue;
            };
            let known = learned.get(&leg.name).and_then(Learned::known);
            own.finder = Some(Finder::start(steering, &leg.name, ceiling(leg), known)?);
        }
        Ok(())
    }

    /// Gives what was found of the legs' paths, as far as it is sure.
    pub fn learned(&self) -> Legs {
        let finders = self.by_leg.iter().filter_map(|(leg, own)| {
            let (found, _) = own.finder.as_ref()?.found();
            let is_sure = found.is_used && !found.is_starting;
            let of_leg = is_sure.then(|| Learned {
                rate: Some(8.0 * found.capacity),
                rtt: found.rtt,
                ..Learned::default()
            })?;
            Some((leg.clone(), of_leg))
        });
        finders.collect()
    }

    /// Takes over the most that may be sent, of a configuration that is in force from now on.
    pub fn follow(&self, config: &Config) {
        for leg in &config.legs {
            if let Some(finder) = self.by_leg.get(&leg.name).and_then(|it| it.finder.as_ref()) {
                finder.limit(ceiling(leg));
            }
        }
    }

    /// Gives what knows the rates of the legs whose rate is found, by leg.
    pub fn finders(&self) -> Finders {
        let finder = |(leg, own): (&String, &Own)| Some((leg.clone(), own.finder.clone()?));
        Finders(self.by_leg.iter().filter_map(finder).collect())
    }

    /// Tells whether some are to be steered, or removed at the end, which takes bpf(2).
    pub fn need_bpf(&self) -> bool {
        let resume = self.resume.as_ref().and_then(|it| it.as_ref().ok());
        !self.by_leg.is_empty() || resume.is_some_and(|it| !it.goes_by_itself())
    }

    /// Gives the control that opens windows after an outage, if the kernel takes it.
    pub fn resume(&self) -> Option<String> {
        let control = self.resume.as_ref()?.as_ref().ok()?;
        Some(control.name().as_str().to_owned())
    }

    /// Gives the descriptor by which that control is registered, if it goes with that.
    pub fn resume_link(&self) -> Option<RawFd> {
        let control = self.resume.as_ref()?.as_ref().ok()?;
        control.link().map(|link| link.as_raw_fd())
    }

    /// Logs what the legs' controls are called in `ss`.
    pub fn report(&self) {
        match &self.resume {
            Some(Err(Error::NotPermitted { .. })) => tracing::info!(
                "after an outage connections begin with one segment: to open their windows takes CAP_BPF, \
                 CAP_PERFMON and CAP_NET_ADMIN at the start (AmbientCapabilities= and SystemCallFilter=bpf in \
                 the unit)"
            ),
            Some(Err(error)) => {
                tracing::info!(%error, "after an outage connections begin with one segment");
            }
            Some(Ok(_)) | None => {}
        }
        for (leg, error) in &self.lacking {
            tracing::info!(leg, %error, "find-rate is not among what is chosen from");
        }
        for (leg, own) in &self.by_leg {
            let name = own.control.name();
            if own.control.is_adopted() {
                tracing::warn!(
                    leg,
                    %name,
                    "an earlier pepd's fixed-rate control serves on: replacing it takes \
                     CAP_SYS_ADMIN; after an update run `pepd down` as root before the start"
                );
            } else {
                tracing::info!(leg, %name, congestion = own.of.as_str(), "rate control");
            }
        }
    }

    /// Gives the control that the leg's sockets are to have (`TCP_CONGESTION`); `None` is the
    /// kernel's default.
    pub fn kernel_name(&self, leg: &Leg) -> Option<String> {
        match leg.congestion.as_ref()? {
            Congestion::Kernel(name) => Some(name.clone()),
            Congestion::FixedRate | Congestion::FindRate => {
                let own = self.by_leg.get(&leg.name)?;
                Some(own.control.name().as_str().to_owned())
            }
            Congestion::Auto => None,
        }
    }

    /// Gives what is chosen for a leg with `congestion = "auto"`; none for another one.
    pub fn chosen(&self, leg: &Leg) -> Option<ChosenControl> {
        if leg.congestion != Some(Congestion::Auto) {
            return None;
        }
        let mut all = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let own = self
                .can_find(leg)
                .then(|| self.name_of(leg, Chosen::FindRate));
            ChosenControl::new(self.name_of(leg, Chosen::default()), own)
        };
        Some(all.entry(leg.name.clone()).or_insert_with(new).clone())
    }

    /// Gives the kernel's name of what is chosen for a leg.
    pub fn name_of(&self, leg: &Leg, chosen: Chosen) -> String {
        match (chosen, self.by_leg.get(&leg.name)) {
            (Chosen::FindRate, Some(own)) => own.control.name().as_str().to_owned(),
            (Chosen::Cubic | Chosen::Bbr | Chosen::FindRate, _) => chosen.name().to_owned(),
        }
    }

    /// Tells whether find-rate is among what is chosen from for a leg: the kernel has it, and the leg's link is
    /// the operator's own.
    pub fn can_find(&self, leg: &Leg) -> bool {
        let own = self.by_leg.get(&leg.name);
        own.is_some_and(|own| own.of == Congestion::FindRate) && has_own_link(leg)
    }

    /// Refuses a configuration that was read again if a leg asks for a control that did not exist
    /// at the start.
    pub fn require(&self, config: &Config) -> Result {
        let lacks = |leg: &&Leg| {
            let has = self.by_leg.get(&leg.name).map(|own| &own.of);
            is_asked_for(leg) && has != leg.congestion.as_ref()
        };
        match config.legs.iter().find(lacks) {
            Some(leg) => Err(Failure::unavailable(format!(
                "leg \"{}\": congestion = \"{}\" takes privileges that pepd has only at \
                 its start; restart pepd",
                leg.name,
                leg.congestion.as_ref().map_or("", Congestion::as_str),
            ))),
            None => Ok(()),
        }
    }

    /// Gives the names by which the kernel knows the controls.
    pub fn names(&self) -> Names {
        let name = |own: &Own| (own.control.name().clone(), own.of.clone());
        Names(self.by_leg.values().map(name).collect())
    }
}

/// The names by which the kernel knows the legs' controls.
#[derive(Clone, Debug)]
pub struct Names(Vec<(Name, Congestion)>);

impl Names {
    /// Replaces the kernel's name of a leg's control by the configuration's.
    pub fn translate(&self, flow: &mut FlowSnapshot) {
        for leg in [&mut flow.client_leg, &mut flow.upstream_leg] {
            let Some(name) = &mut leg.congestion else {
                continue;
            };
            if let Some((_, own)) = self.0.iter().find(|(it, _)| it.as_str() == name) {
                own.as_str().clone_into(name);
            }
        }
    }
}

/// What knows the rates that are found, by leg.
#[derive(Clone, Debug)]
pub struct Finders(Vec<(String, Finder)>);

impl Finders {
    /// Gives what is known of each leg's path.
    pub fn rates(&self) -> Vec<FoundRate> {
        let rate = |(leg, finder): &(String, Finder)| {
            let (found, limit) = finder.found();
            found.of(leg, limit)
        };
        self.0.iter().map(rate).collect()
    }

    /// Gives the least round trip of a leg in the last five minutes of use, in seconds; none of a leg whose rate is not found.
    pub fn least_rtt(&self, leg: &str) -> Option<f64> {
        let (_, finder) = self.0.iter().find(|(name, _)| name == leg)?;
        finder.found().0.least_rtt
    }

    /// Ends a second of a leg, and gives what its path was like in it; none while it is not used, and of a
    /// leg whose rate is not found.
    pub fn end_second(&self, leg: &str) -> Option<PathPoint> {
        let of_leg = self.0.iter().find(|it| it.0 == leg)?;
        of_leg.1.end_second()
    }
}

/// Returns whether the file says what the link under a leg is: its rate, or what tells of it. Then it is not just a path
/// through the Internet.
fn has_own_link(leg: &Leg) -> bool {
    leg.rate.is_some() || leg.link.is_some()
}

/// Registers a control, with what steers it.
fn register(
    namespace: NetworkNamespace,
    number: u8,
    purpose: Use,
) -> std::result::Result<(Control, Option<Steering>), Error> {
    let control = pepd_bpf::register(namespace, number, purpose)?;
    let steering = match purpose {
        Use::GivenRate | Use::Resume => None,
        Use::FoundRate => control.steering()?,
    };
    Ok((control, steering))
}

/// Removes what a killed daemon has left, and gives a line for each control that there was.
pub fn remove_left() -> Result<String> {
    let removed = pepd_bpf::remove_left(namespace()?, None)?;
    let lines = removed
        .iter()
        .map(|name| format!("removed congestion control {name}\n"));
    Ok(lines.collect())
}

/// Returns whether `leg` asks for such a control.
pub fn is_asked_for(leg: &Leg) -> bool {
    leg.congestion.as_ref().is_some_and(Congestion::is_own)
}

/// Returns the most that a leg may send, in bytes of IP packets a second.
fn ceiling(leg: &Leg) -> Option<f64> {
    #[allow(clippy::cast_precision_loss, reason = "rates are below 2^53")]
    leg.rate.map(|rate| rate.0 as f64 / 8.0)
}

fn namespace() -> Result<NetworkNamespace> {
    NetworkNamespace::current()
        .map_err(|error| Failure::internal("read /proc/thread-self/ns/net", error))
}
