//! Who paces: a queueing discipline, or the kernel's timers.

use pepd_config::Config;

use super::congestion::Family;
use super::finding::{Cure, Finding};
use super::links::{Link, Links, Qdisc};
use super::modules::{Modules, Presence};

const ID: &str = "pacing";

/// Gives one finding per interface, if a leg paces at all.
pub fn judge(links: &Links, modules: &Modules, config: &Config) -> Vec<Finding> {
    let paces = |leg: &pepd_config::Leg| {
        leg.rate.is_some()
            || leg
                .congestion
                .as_ref()
                .is_some_and(|control| Family::of(control) == Family::Bbr)
    };
    let legs: Vec<_> = config
        .legs
        .iter()
        .filter(|leg| paces(leg))
        .map(|leg| leg.name.as_str())
        .collect();
    if legs.is_empty() {
        return Vec::new();
    }
    links
        .out()
        .map(|link| judge_interface(link, modules, &legs.join(", ")))
        .collect()
}

fn judge_interface(link: &Link, modules: &Modules, legs: &str) -> Finding {
    let kinds: Vec<_> = link.qdiscs.iter().map(ToString::to_string).collect();
    let kinds = kinds.join(" ");
    let finding = if link.qdiscs.contains(&Qdisc::Fq) {
        Finding::ok(ID, format!("fq paces ({kinds})"))
    } else if link.qdiscs.iter().all(|qdisc| *qdisc == Qdisc::NoQueue) {
        Finding::ok(ID, "no queue of its own: the kernel's timers pace")
    } else {
        timers(link, modules, legs, &kinds)
    };
    finding.about(&link.name)
}

fn timers(link: &Link, modules: &Modules, legs: &str, kinds: &str) -> Finding {
    let finding = Finding::note(ID, format!("the kernel's own timers pace (qdisc {kinds})"))
        .because(format!(
            "leg {legs} is paced. It works without fq; but a timer per connection costs an \
             interrupt per burst, and of the queue behind it one connection may take all: with \
             hundreds of connections fq needs less CPU and shares better"
        ));
    match modules.presence("sch_fq") {
        Presence::Missing => {
            finding.advice("boot a kernel that has fq (module sch_fq), if it comes to that")
        }
        // A device with several queues has a discipline per queue.
        _ if matches!(link.qdiscs.first(), Some(Qdisc::MultiQueue(_))) => {
            finding.cure(Cure::Sysctl(format!(
                "sysctl -w net.core.default_qdisc=fq; tc qdisc del dev {0} root; \
             tc qdisc replace dev {0} root mq",
                link.name
            )))
        }
        _ => finding.cure(format!("tc qdisc replace dev {} root fq", link.name)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use pepd_config::Congestion;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::config;

    #[rstest]
    #[case::fq(&["fq"], Level::Ok, false)]
    #[case::fq_per_queue(&["mq", "fq", "fq"], Level::Ok, false)]
    #[case::virtual_device(&["noqueue"], Level::Ok, false)]
    #[case::debian(&["fq_codel"], Level::Note, true)]
    #[case::several_queues(&["mq", "fq_codel"], Level::Note, true)]
    fn by_discipline(#[case] qdiscs: &[&str], #[case] expected: Level, #[case] cure: bool) {
        let mut link = Link::named("wan");
        link.qdiscs = qdiscs.iter().map(|kind| Qdisc::from(*kind)).collect();
        let finding = judge_interface(&link, &Modules::of(&[], &["sch_fq"]), "satellite");
        assert_eq!((finding.level, finding.cure.is_some()), (expected, cure));
    }

    #[rstest]
    #[case(None, None, false)]
    #[case(Some("bbr"), None, true)]
    #[case(Some("cubic"), Some(1_000_000), true)]
    fn only_if_a_leg_paces(
        #[case] congestion: Option<&str>,
        #[case] rate: Option<u64>,
        #[case] judged: bool,
    ) {
        let mut config = config("");
        config.legs[0].congestion = congestion.map(|name| Congestion::Kernel(name.to_owned()));
        config.legs[0].rate = rate.map(pepd_config::Rate);
        let links = Links::of(vec![Link::named("wan")]);
        assert_eq!(
            !judge(&links, &Modules::of(&[], &[]), &config).is_empty(),
            judged
        );
    }
}
