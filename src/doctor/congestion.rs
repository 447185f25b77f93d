//! The congestion controls that the legs ask for.

use pepd_config::{Buffer, Config, Congestion, Leg};

use super::finding::{Finding, Level};
use super::modules::{Modules, Presence};
use super::sysctl::Sysctls;
use crate::daemon::controls;

const ID: &str = "congestion";

/// Whether this kernel takes pepd's own control, if a leg asks for it, and why not.
#[derive(Debug)]
pub struct OwnControl(Option<Result<(), pepd_bpf::Error>>);

impl OwnControl {
    /// Loads the control and forgets it again.
    pub fn gather(config: &Config) -> Self {
        let asked = config.legs.iter().any(controls::is_asked_for);
        Self(asked.then(pepd_bpf::probe))
    }
}

/// The kind of congestion control that a leg asks for, as far as that matters to the doctor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Takes a loss for congestion.
    LossBased,
    /// Paces by a model of the path.
    Bbr,
    /// Any other.
    Other,
}

impl Family {
    /// Tells a control's family by its name.
    pub fn of(control: &Congestion) -> Self {
        match control {
            Congestion::Kernel(name) => match name.as_str() {
                "cubic" | "reno" => Self::LossBased,
                name if name.starts_with("bbr") => Self::Bbr,
                _ => Self::Other,
            },
            Congestion::FixedRate | Congestion::FindRate | Congestion::Auto => Self::Other,
        }
    }
}

/// Gives one finding per leg.
pub fn judge(
    sysctls: &Sysctls,
    modules: &Modules,
    own_control: &OwnControl,
    config: &Config,
) -> Vec<Finding> {
    let of_leg = |leg| judge_leg(sysctls, modules, own_control, leg);
    let legs = config.legs.iter().map(of_leg);
    legs.chain(config.legs.iter().filter_map(loss_based))
        .collect()
}

fn judge_leg(sysctls: &Sysctls, modules: &Modules, own_control: &OwnControl, leg: &Leg) -> Finding {
    let finding = match &leg.congestion {
        Some(Congestion::Kernel(wanted)) => {
            let available = sysctls.text("net/ipv4/tcp_available_congestion_control");
            judge_kernel_control(wanted, available.unwrap_or_default(), modules)
        }
        Some(own @ (Congestion::FixedRate | Congestion::FindRate)) => judge_own(own, own_control),
        Some(Congestion::Auto) => judge_auto(sysctls, modules),
        None => judge_default(sysctls),
    };
    finding.about(format!("leg {}", leg.name))
}

/// Names the legs that ask for a control which this kernel does not have and cannot load, each with
/// what there is. pepd's own are not tried: that takes privileges.
pub fn refused_here(config: &Config) -> Vec<(&str, String)> {
    let untried = OwnControl(None);
    let (sysctls, modules) = (Sysctls::gather(), Modules::gather());
    let refused = |leg: &'_ Leg| {
        let finding = judge_leg(&sysctls, &modules, &untried, leg);
        (finding.level == Level::Stop).then_some(finding.found)
    };
    let legs = config.legs.iter();
    legs.filter_map(|leg| Some((leg.name.as_str(), refused(leg)?)))
        .collect()
}

fn judge_kernel_control(wanted: &str, available: &str, modules: &Modules) -> Finding {
    let module = format!("tcp_{wanted}");
    if available.split_whitespace().any(|name| name == wanted) {
        return Finding::ok(ID, format!("{wanted} is there"));
    }
    let others = pepd_relay::without_own_controls(available);
    let missing = format!("the kernel has no {wanted}; it has: {others}");
    match modules.presence(&module) {
        Presence::Loaded | Presence::Loadable => Finding::ok(
            ID,
            format!("{wanted} is loaded when pepd asks for it (module {module})"),
        ),
        Presence::Missing => Finding::stop(ID, missing)
            .because("`pepd run` refuses to start with less than the file asks for")
            .advice(format!(
                "choose one of those, or boot a kernel that has the module {module}"
            )),
    }
}

fn judge_own(asked: &Congestion, OwnControl(probed): &OwnControl) -> Finding {
    match probed {
        Some(Err(error)) => Finding::stop(ID, error.to_string())
            .because("`pepd run` refuses to start with less than the file asks for")
            .advice(format!(
                "see docs/{}.md; bbr is what comes next to it",
                asked.as_str()
            )),
        _ => Finding::ok(
            ID,
            format!("{}: this kernel takes the program", asked.as_str()),
        ),
    }
}

fn judge_auto(sysctls: &Sysctls, modules: &Modules) -> Finding {
    let available = sysctls.text("net/ipv4/tcp_available_congestion_control");
    let available = available.unwrap_or_default();
    let cubic = judge_kernel_control("cubic", available, modules);
    if cubic.level == Level::Stop {
        return cubic;
    }
    match judge_kernel_control("bbr", available, modules).level {
        Level::Stop => Finding::note(ID, "auto, without bbr: the kernel does not have it")
            .because("where packets are lost without a queue there is nothing else to choose")
            .advice("boot a kernel that has the module tcp_bbr; or see docs/congestion.md for find-rate"),
        _ => Finding::ok(ID, "auto: there are cubic and bbr to choose from"),
    }
}

fn judge_default(sysctls: &Sysctls) -> Finding {
    let default = sysctls.text("net/ipv4/tcp_congestion_control");
    let default = default.unwrap_or("unknown");
    Finding::ok(ID, format!("the kernel's own: {default}"))
}

/// Notes a loss-based control on a long leg. A pacing ceiling far above what a loss-based control
/// reaches is no use to a lossy leg: but whether a leg is lossy is not known before there is
/// traffic. What is known is a contradiction: a leg that is made for a long path, and a control
/// that is not.
fn loss_based(leg: &Leg) -> Option<Finding> {
    let control = leg.congestion.as_ref()?;
    let size = leg.buffer.and_then(Buffer::size);
    let long = size.is_some_and(|bytes| bytes.0 >= 4 << 20);
    (long && Family::of(control) == Family::LossBased).then(|| {
        let control = control.as_str();
        Finding::note(
            "congestion.loss-based",
            format!("{control}, with a buffer as for a long path"),
        )
        .about(format!("leg {}", leg.name))
        .because(format!(
            "{control} takes every loss for congestion: at 1 % loss and 600 ms it carries about \
             0.25 Mbit/s, whatever the link could (Mathis et al., 1997, eq. 3)"
        ))
        .advice("where losses are not congestion (radio, satellite), write congestion = \"bbr\"")
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;

    #[rstest]
    #[case::there("bbr", "reno cubic bbr", &[], Level::Ok)]
    #[case::loadable("bbr", "reno cubic", &["tcp_bbr"], Level::Ok)]
    #[case::missing("hybla", "reno cubic", &["tcp_bbr"], Level::Stop)]
    #[case::not_a_part_of_a_name("bb", "reno cubic bbr", &[], Level::Stop)]
    fn wanted_and_there(
        #[case] wanted: &str,
        #[case] available: &str,
        #[case] loadable: &[&str],
        #[case] expected: Level,
    ) {
        let finding = judge_kernel_control(wanted, available, &Modules::of(&[], loadable));
        assert_eq!(finding.level, expected, "{finding:?}");
    }

    #[rstest]
    #[case::taken(Some(Ok(())), Level::Ok)]
    #[case::not_taken(Some(Err(pepd_bpf::Error::NoTypes)), Level::Stop)]
    fn pepds_own(#[case] probed: Option<Result<(), pepd_bpf::Error>>, #[case] expected: Level) {
        let asked = Congestion::FindRate;
        assert_eq!(judge_own(&asked, &OwnControl(probed)).level, expected);
    }

    #[rstest]
    #[case("cubic", Some(8 << 20), true)]
    #[case("bbr", Some(8 << 20), false)]
    #[case("cubic", Some(1 << 20), false)]
    #[case("cubic", None, false)]
    fn a_loss_based_control_on_a_long_leg(
        #[case] control: &str,
        #[case] buffer: Option<u64>,
        #[case] noted: bool,
    ) {
        let mut leg = crate::doctor::fixture::config("").legs.remove(0);
        leg.congestion = Some(Congestion::Kernel(control.to_owned()));
        leg.buffer = buffer.map(|bytes| Buffer::Size(pepd_config::Size(bytes)));
        assert_eq!(loss_based(&leg).is_some(), noted);
    }
}
