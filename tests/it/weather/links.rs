//! Who tells of a link, and what is believed.

use anyhow::Result;
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Topology, Via, World, require, wait_until};

use super::outages::{open, status, tell, wait_for_log};
use crate::harness::LIMIT;

/// Less than a first window, so that all of it is sent whatever becomes of it.
const BYTES: u64 = 10_000;

/// Returns whether this is the timer of a SYN that was sent at least three times, as `ss` shows it.
fn is_third_time(word: &str) -> bool {
    let times = word
        .strip_prefix("timer:(on,")
        .and_then(|it| it.strip_suffix(')'));
    let times = times.and_then(|it| it.rsplit(',').next()?.parse().ok());
    times.is_some_and(|times: u32| times >= 2)
}

/// An interface tells by its carrier, and one that is not there tells that it is not.
#[test]
fn an_interface_tells_whether_its_link_is_there() -> Result<()> {
    require!(root, program("ip"));
    let link = format!(
        "link = {{ interface = \"{}\" }}\n",
        Topology::device("server")
    );
    let mut stage = open(Via::Pepd, &link)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(BYTES)?;
    let far_end = Topology::device("hb");
    stage
        .world
        .server()
        .sh(&format!("ip link set {far_end} down"))?;
    wait_for_log(&stage, "the link is gone")?;
    assert!(status(&stage)?.contains("GONE"));
    let pattern = Pattern::new(9);
    send(&pair.client, &pattern, 0, BYTES)?;
    // Who connects meanwhile waits, though this host finds nobody there.
    let listener = stage.world.listen(Family::V4)?;
    let again = std::thread::scope(|scope| -> Result<Pair> {
        let client = scope.spawn(|| Pair::through(&listener, stage.world.client()));
        let to = listener.local_addr()?;
        let hb = stage.world.hb();
        let dials = || hb.sh(&format!("ss -Htno state syn-sent dst {to}"));
        wait_until(LIMIT, "it is dialed", || {
            dials().is_ok_and(|it| !it.is_empty())
        })?;
        // Its next hop does not answer, or it is dialed in vain again and again.
        wait_until(LIMIT, "nobody is there", || {
            let neighbours = hb.sh("ip neighbour show nud failed");
            let tried = dials().map(|it| it.split_whitespace().any(is_third_time));
            neighbours.is_ok_and(|it| it.contains(&to.ip().to_string()))
                || tried.is_ok_and(|tried| tried)
        })?;
        assert!(!client.is_finished(), "it does not wait");
        stage.world.server().sh(&format!(
            "ip link set {far_end} up; ip route replace default via 10.2.0.1"
        ))?;
        client.join().unwrap()
    })?;
    wait_for_log(&stage, "the link is up")?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    again.exchange(BYTES)?;
    let config = World::config().replace("[leg.wan]", "[leg.wan]\nwhile_gone = \"refuse\"");
    let none = "[leg.wan]\nlink = { interface = \"none0\" }";
    stage.pepd()?.reload(&config.replace("[leg.wan]", none))?;
    wait_for_log(&stage, "there is no such interface now")?;
    wait_for_log(&stage, "by=\"interface none0, which does not exist\"")?;
    let said = status(&stage)?;
    assert!(
        said.contains("interface none0, which does not exist\n"),
        "{said}"
    );
    pair.exchange(BYTES)?;
    assert!(stage.world.pair(Family::V4).is_err(), "it is refused");
    // What nothing tells of any more is not gone for ever.
    stage.pepd()?.reload(&config)?;
    wait_for_log(&stage, "by=\"a reload\"")?;
    wait_until(LIMIT, "connections are split again", || {
        stage.world.probe(Family::V4).is_ok_and(|(_, split)| split)
    })?;
    stage.finish()
}

/// An interface that gets another name or is deleted is not there any more, and one that is made anew is.
#[test]
fn an_interface_is_the_one_that_has_the_name_now() -> Result<()> {
    require!(root, program("ip"));
    let stage = open(Via::Pepd, "link = { interface = \"radio0\" }\n")?;
    let make = "ip link add radio0 up type veth peer name radio9; ip link set radio9 up";
    // Kernels before 6.2 have it down for that.
    let rename = |from, to| {
        format!(
            "ip link set {from} name {to} || {{ ip link set {from} down; \
             ip link set {from} name {to}; ip link set {to} up; }}"
        )
    };
    let becomes = |words: &str, is_up: bool| -> Result<()> {
        stage.world.hb().sh(words)?;
        wait_until(LIMIT, words, || {
            status(&stage).is_ok_and(|said| said.contains("GONE") != is_up)
        })
    };
    becomes("true", false)?;
    becomes(make, true)?;
    becomes(&rename("radio0", "radio1"), false)?;
    becomes(&rename("radio1", "radio0"), true)?;
    becomes("ip link set radio0 down", false)?;
    becomes("ip link set radio0 up; ip link delete radio0", false)?;
    wait_until(LIMIT, "status says why", || {
        status(&stage).is_ok_and(|said| said.contains("interface radio0, which does not exist"))
    })?;
    becomes(make, true)?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

#[test]
fn what_is_told_wrongly_is_refused() -> Result<()> {
    require!(root);
    let stage = open(Via::Pepd, "")?;
    let wrong = |words: &str| tell(&stage, words).unwrap_err().to_string();
    let refused = wrong("nonesuch up");
    assert!(refused.contains("the legs are: lan, wan"), "{refused}");
    let refused = wrong("wan up --for 3s");
    assert!(refused.contains("with `going-down` only"), "{refused}");
    let refused = wrong("wan sideways");
    assert!(refused.contains("going-down"), "{refused}");
    let said = tell(&stage, "wan going-down --for 1s")?;
    assert!(said.starts_with("wan: going-down"), "{said}");
    wait_for_log(&stage, "by=\"its time is over\"")?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// What somebody has told holds until something else is heard: a reload is nothing of the kind. And it is
/// said who has told it.
#[test]
fn what_was_told_survives_a_reload() -> Result<()> {
    require!(root, program("ip"));
    let link = format!(
        "link = {{ interface = \"{}\" }}\n",
        Topology::device("server")
    );
    let mut stage = open(Via::Pepd, &link)?;
    assert_eq!(tell(&stage, "wan gone")?, "wan: gone\n");
    // Nor is a file that has nothing tell of the link any more, or an interface that is there.
    for (link, who) in [
        (&*link, "pepd link; interface"),
        ("", "pepd link"),
        (&*link, "pepd link; interface"),
    ] {
        let config = World::config().replace("[leg.wan]\n", &format!("[leg.wan]\n{link}"));
        let config = format!("{config}{}", stage.world.admin());
        stage.pepd()?.reload(&config)?;
        // What is asked within a moment has the same answer.
        wait_until(LIMIT, "who tells is said", || {
            let said = status(&stage).unwrap_or_default();
            said.contains(who) && said.contains("interface") == who.contains("interface")
        })?;
        let said = status(&stage)?;
        assert!(said.contains("GONE"), "{said}");
    }
    tell(&stage, "wan up")?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}

/// A link that flaps is believed to be up only after a while, and whoever tells it, asks or reads the log
/// hears so.
#[test]
fn a_link_that_flaps_is_said_to() -> Result<()> {
    require!(root);
    let stage = open(Via::Pepd, "")?;
    for _ in 0..9 {
        tell(&stage, "wan gone")?;
        tell(&stage, "wan up")?;
    }
    tell(&stage, "wan gone")?;
    let told = tell(&stage, "wan up")?;
    assert!(told.starts_with("wan: gone, flaps: up in "), "{told}");
    let said = status(&stage)?;
    assert!(said.contains("GONE, flaps: up in "), "{said}");
    wait_for_log(
        &stage,
        "but flaps: it is used when it has been up for longer",
    )?;
    wait_for_log(&stage, "it has flapped, and was up for long enough")?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}
