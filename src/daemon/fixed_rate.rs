//! `congestion = "fixed-rate"`: the controls of the legs that ask for it.

use std::collections::BTreeMap;

use pepd_admin::wire::FlowSnapshot;
use pepd_bpf::{Control, Error, Name, NetworkNamespace};
use pepd_config::{Config, Congestion, Leg};

use crate::exit::{Failure, Result};

/// The registered controls, by leg. They go when this is dropped; connections that still have
/// them keep them.
#[derive(Debug, Default)]
pub struct Controls {
    by_leg: BTreeMap<String, Control>,
}

impl Controls {
    /// Registers a control for each leg that asks for one, in place of whatever a crash left.
    /// Needs capabilities that pepd gives up at its start.
    pub fn register(config: &Config) -> Result<Self> {
        let namespace = namespace()?;
        match pepd_bpf::remove_left(namespace) {
            Ok(_) => {}
            // It stays, or is adopted; a leg that needs a control and gets none is reported below.
            Err(Error::NotBuilt | Error::NotPermitted { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let mut by_leg = BTreeMap::new();
        for (number, leg) in (0..=u8::MAX).zip(&config.legs) {
            if is_asked_for(leg) {
                let control = pepd_bpf::register(&namespace.name(number))?;
                by_leg.insert(leg.name.clone(), control);
            }
        }
        Ok(Self { by_leg })
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_leg.is_empty()
    }

    /// Logs what the legs' controls are called in `ss`.
    pub fn report(&self) {
        for (leg, control) in &self.by_leg {
            let name = control.name();
            if control.is_adopted() {
                tracing::warn!(
                    leg,
                    %name,
                    "an earlier pepd's fixed-rate control serves on: replacing it takes \
                     CAP_SYS_ADMIN; after an update run `pepd down` as root before the start"
                );
            } else {
                tracing::info!(leg, %name, "fixed rate");
            }
        }
    }

    /// Gives the control that the leg's sockets are to have (`TCP_CONGESTION`); `None` is the
    /// kernel's default.
    pub fn kernel_name(&self, leg: &Leg) -> Option<String> {
        match leg.congestion.as_ref()? {
            Congestion::Kernel(name) => Some(name.clone()),
            Congestion::FixedRate => {
                let control = self.by_leg.get(&leg.name)?;
                Some(control.name().as_str().to_owned())
            }
        }
    }

    /// Refuses a configuration that was read again if a leg asks for a control that did not exist
    /// at the start.
    pub fn require(&self, config: &Config) -> Result {
        let lacks = |leg: &&Leg| is_asked_for(leg) && !self.by_leg.contains_key(&leg.name);
        match config.legs.iter().find(lacks) {
            Some(leg) => Err(Failure::unavailable(format!(
                "leg \"{}\": congestion = \"fixed-rate\" takes privileges that pepd has only at \
                 its start; restart pepd",
                leg.name
            ))),
            None => Ok(()),
        }
    }

    /// Gives the names by which the kernel knows the controls.
    pub fn names(&self) -> Names {
        Names(self.by_leg.values().map(|it| it.name().clone()).collect())
    }
}

/// The names by which the kernel knows the legs' controls.
#[derive(Clone, Debug)]
pub struct Names(Vec<Name>);

impl Names {
    /// Replaces the kernel's name of a leg's control by the configuration's.
    pub fn translate(&self, flow: &mut FlowSnapshot) {
        for leg in [&mut flow.client_leg, &mut flow.upstream_leg] {
            let ours = |text: &str| self.0.iter().any(|name| name.as_str() == text);
            if let Some(name) = leg.congestion.as_mut().filter(|name| ours(name)) {
                Congestion::FixedRate.as_str().clone_into(name);
            }
        }
    }
}

/// Removes what a killed daemon has left, and gives a line for each control that there was.
pub fn remove_left() -> Result<String> {
    let removed = pepd_bpf::remove_left(namespace()?)?;
    let lines = removed
        .iter()
        .map(|name| format!("removed congestion control {name}\n"));
    Ok(lines.collect())
}

/// Returns whether `leg` asks for such a control.
pub fn is_asked_for(leg: &Leg) -> bool {
    leg.congestion == Some(Congestion::FixedRate)
}

fn namespace() -> Result<NetworkNamespace> {
    NetworkNamespace::current()
        .map_err(|error| Failure::internal("read /proc/thread-self/ns/net", error))
}
