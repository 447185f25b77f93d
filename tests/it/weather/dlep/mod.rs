//! A modem that tells by DLEP (RFC 8175) whether the link is there, and how fast it is; and one that
//! should not be believed.

mod attacks;
mod lab;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_dlep::item::ConnectionPoint;
use pepd_dlep::{DataItem, MacAddress, Message, MessageKind, PORT, Signal, StatusCode};
use pepd_testbed::modem::{Beacon, FAR, Modem, Session, TTL, accepted};
use pepd_testbed::traffic::{Pattern, receive_exactly, send};
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;

use self::lab::Lab;
use super::{LOSE, RESTORE};
use crate::harness::LIMIT;

/// The box's interface to the host that is the modem here. The link that it tells of is another one.
const INTERFACE: &str = "to-outsider";

/// Longer than any test: a modem that need not say that it is there.
const QUIET: Duration = Duration::from_secs(600);

/// What is under way over the link.
const BYTES: u64 = 16 * 1024;

/// What a router that looks for modems is told: where to connect.
fn offer(points: &[SocketAddr]) -> Vec<u8> {
    let point = |at: &SocketAddr| ConnectionPoint {
        tls: false,
        address: at.ip(),
        port: Some(at.port()),
    };
    let points = points.iter().map(point).collect();
    let peer_type = Some("a modem of the testbed's".to_owned());
    Signal::PeerOffer { peer_type, points }.to_bytes()
}

fn up(session: &mut Session) -> Result<()> {
    session.say(MessageKind::DestinationUp, FAR, &[])
}

/// The link goes and comes back as the modem says, what is under way survives it, and how fast the link
/// is can be seen wherever one looks.
#[rstest]
fn a_modem_tells_of_its_link(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let (lab, modem) = Lab::direct(family, "")?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    lab.wait_for("the rate", |said| {
        said["transmit_rate"] == 4_000_000 && said["receive_rate"] == 8_000_000
    })?;
    assert_eq!(lab.link()?["state"], "up");
    let pair = lab.stage.world.pair(family)?;
    pair.exchange(BYTES)?;

    session.say(MessageKind::DestinationDown, FAR, &[])?;
    lab.wait_for_state("gone")?;
    let server = lab.stage.world.server();
    server.sh(LOSE)?;
    let pattern = Pattern::new(7);
    send(&pair.client, &pattern, 0, BYTES)?;
    server.sh(RESTORE)?;
    session.say(
        MessageKind::DestinationUp,
        FAR,
        &[
            DataItem::CurrentRateTransmit(3_000_000),
            DataItem::Latency(300_000),
        ],
    )?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    pair.exchange(BYTES)?;
    lab.wait_for_state("up")?;

    let text = lab.ask("status")?;
    for words in ["dlep modem", "3.00 Mbit/s out", "8.00 Mbit/s in", "300 ms"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let update = [DataItem::CurrentRateTransmit(2_000_000)];
    session.say(MessageKind::DestinationUpdate, FAR, &update)?;
    lab.wait_for("the rate", |said| said["transmit_rate"] == 2_000_000)?;
    let metrics = lab.metrics()?;
    for line in [
        "pepd_link_session{leg=\"wan\"} 1",
        "pepd_link_rate_bytes_per_second{leg=\"wan\",direction=\"out\"} 250000",
        "pepd_link_rate_bytes_per_second{leg=\"wan\",direction=\"in\"} 1000000",
        "pepd_link_latency_seconds{leg=\"wan\"} 0.3",
        "pepd_link_state{leg=\"wan\",state=\"up\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    lab.finish()
}

/// A modem is found by its interface alone, also by its link-local address.
#[rstest]
fn a_modem_is_found(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let lab = Lab::with(&format!("interface = \"{INTERFACE}\""))?;
    let world = &lab.stage.world;
    let modem = Modem::listen(world.outsider(), family.any(PORT), TTL)?;
    let address = Lab::address(family)?;
    let beacon = Beacon::listen(world.outsider(), "to-hb", address, TTL)?;
    // It says nothing of where: at the address that the offer comes from.
    let mut session = modem.found_by(|| beacon.send(&offer(&[]), beacon.hear()?))?;
    up(&mut session)?;
    lab.wait_for("a session", |said| said["session"].is_string())?;
    session.say(MessageKind::DestinationDown, FAR, &[])?;
    lab.wait_for_state("gone")?;
    up(&mut session)?;
    lab.wait_for_state("up")?;
    lab.finish()
}

/// Of offers only those count that come from the interface, from no router, and are understood; the
/// first of them, where there are several.
#[rstest]
fn the_first_offer_that_is_one_is_followed() -> Result<()> {
    require!(root, program("nft"));
    let lab = Lab::with(&format!("interface = \"{INTERFACE}\""))?;
    let world = &lab.stage.world;
    let at = |port| SocketAddr::from(([10, 9, 0, 2], port));
    let address = at(0).ip();
    let modems = [8854, 8855, 8856]
        .map(|port| Modem::listen(world.outsider(), at(port), TTL).map(|modem| (port, modem)));
    let [wrong, first, second] = modems;
    let (wrong, first, second) = (wrong?, first?, second?);
    let far = Beacon::listen(world.outsider(), "to-hb", address, 64)?;
    let near = Beacon::listen(world.outsider(), "to-hb", address, TTL)?;
    // Another interface's.
    let side = IpAddr::from([10, 1, 0, 2]);
    let elsewhere = Beacon::listen(world.client(), "to-hb", side, TTL)?;
    let lure = offer(&[at(wrong.0)]);
    let answer = || {
        let router = near.hear()?;
        let (_, shorter) = lure.split_last().context("bytes")?;
        let longer = [&lure[..], &[0]].concat();
        for forged in [shorter, &longer, b"DLEP\0\x02\xff\xff", b"DLEP", b""] {
            near.send(forged, router)?;
        }
        far.send(&lure, router)?;
        elsewhere.send(&lure, ([10, 1, 0, 1], router.port()).into())?;
        near.send(&offer(&[at(first.0)]), router)?;
        near.send(&offer(&[at(second.0)]), router)
    };
    let mut session = first.1.found_by(answer)?;
    up(&mut session)?;
    lab.wait_for("the session", |said| {
        said["session"] == at(first.0).to_string() && said["sessions"] == 1
    })?;
    lab.finish()
}

/// A session that comes through a router is none, unless that is said to be right.
#[rstest]
fn a_modem_behind_a_router_is_not_believed() -> Result<()> {
    require!(root, program("nft"));
    let mut lab = Lab::with("modem = \"10.9.0.2\"")?;
    let modem = Modem::listen(lab.stage.world.outsider(), ([10, 9, 0, 2], PORT).into(), 64)?;
    let mut session = modem.accept()?;
    assert_eq!(session.receive()?.kind, MessageKind::SessionInitialization);
    session.send(&accepted(QUIET))?;
    lab.wait_for_log("the modem has not accepted it in time")?;
    assert_eq!(lab.link()?["modem"]["sessions"], 0);
    drop(session);
    lab.reload("modem = \"10.9.0.2\"\nttl_security = false")?;
    // What waited of the one before is in vain.
    let mut session = None;
    wait_until(LIMIT, "a session", || {
        session = modem.session(QUIET).ok();
        session.as_mut().is_some_and(|session| up(session).is_ok())
    })?;
    assert_eq!(lab.link()?["state"], "up");
    lab.finish()
}

/// How a session ends without a word on the link.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Reset,
    Closed,
    Terminated,
    /// The program says nothing any more, and its kernel still acknowledges.
    Hung,
}

/// A modem whose management begins anew is no link that is gone.
#[rstest]
fn a_modem_that_begins_anew_takes_nothing_with_it(
    #[values(Ending::Reset, Ending::Closed, Ending::Terminated, Ending::Hung)] ending: Ending,
) -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let heartbeat = match ending {
        Ending::Hung => Duration::from_millis(300),
        _ => QUIET,
    };
    let mut session = modem.session(heartbeat)?;
    up(&mut session)?;
    let pair = lab.stage.world.pair(Family::V4)?;
    match ending {
        Ending::Reset => session.reset()?,
        Ending::Closed => drop(session),
        Ending::Terminated => {
            let status = DataItem::Status(StatusCode::SHUTTING_DOWN.into());
            session.send(&Message::new(MessageKind::SessionTermination, [status]))?;
            let answer = session.receive()?;
            assert_eq!(answer.kind, MessageKind::SessionTerminationResponse);
        }
        Ending::Hung => assert_eq!(session.terminated()?, StatusCode::TIMED_OUT),
    }
    lab.wait_for_log("the modem is there, so the link counts as up")?;
    pair.exchange(BYTES)?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    lab.wait_for("another session", |said| {
        said["sessions"] == 2 && said["transmit_rate"] == 4_000_000
    })?;
    let link = lab.link()?;
    assert_eq!(
        (&link["state"], &link["changes"]),
        (&"up".into(), &0.into())
    );
    lab.finish()
}

/// A modem that is not there any more takes the link with it, and brings it back.
#[rstest]
fn a_modem_that_is_not_reached_is_a_link_that_is_gone() -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "heartbeat = \"200ms\"")?;
    let mut session = modem.session(Duration::from_secs(1))?;
    up(&mut session)?;
    let host = lab.stage.world.outsider();
    host.sh(LOSE)?;
    lab.wait_for_state("gone")?;
    lab.wait_for_log("nothing arrives at the modem")?;
    host.sh(RESTORE)?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    lab.wait_for_state("up")?;
    lab.finish()
}

/// A modem that begins anew without a word: its kernel refuses what comes for the session that it no longer has, by
/// RSTs whose TTL is not believed, and then new connections, which shows that it is there.
#[rstest]
fn a_modem_that_refuses_is_there() -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "heartbeat = \"200ms\"")?;
    let mut session = modem.session(Duration::from_secs(1))?;
    up(&mut session)?;
    let host = lab.stage.world.outsider();
    host.sh(LOSE)?;
    session.reset()?;
    drop(modem);
    host.sh(RESTORE)?;
    lab.wait_for_log("nothing arrives at the modem")?;
    lab.wait_for_log("the modem is there after all")?;
    lab.wait_for_state("up")?;
    let link = lab.link()?;
    assert_eq!(
        (&link["changes"], &link["by"]),
        (&2.into(), &"dlep modem".into())
    );
    lab.finish()
}

/// What is not understood, or has no place, ends the session with the code that the RFC has for it, and
/// the daemon has another one afterwards.
#[rstest]
#[case::unknown_message(&[0, 99, 0, 0], StatusCode::UNKNOWN_MESSAGE)]
#[case::unknown_item(&[0, 16, 0, 4, 0, 99, 0, 0], StatusCode::INVALID_DATA)]
#[case::no_destination(&[0, 7, 0, 0], StatusCode::INVALID_DATA)]
#[case::an_item_beyond_the_end(&[0, 11, 0, 10, 0, 7, 0xff, 0xff, 0, 0, 0, 0, 0, 0], StatusCode::INVALID_DATA)]
#[case::a_routers_own(&[0, 14, 0, 10, 0, 7, 0, 6, 0, 0, 0x5e, 0, 0x53, 1], StatusCode::UNEXPECTED_MESSAGE)]
#[case::unknown_destination(&[0, 13, 0, 10, 0, 7, 0, 6, 0, 0, 0x5e, 0, 0x53, 9], StatusCode::INVALID_DESTINATION)]
fn what_is_wrong_ends_the_session(#[case] bytes: &[u8], #[case] code: StatusCode) -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    session.send_bytes(bytes)?;
    assert_eq!(session.terminated()?, code);
    session.send(&Message::new(MessageKind::SessionTerminationResponse, []))?;
    session.closed()?;
    up(&mut modem.session(QUIET)?)?;
    lab.finish()
}

/// The longest message that there can be is taken; what claims to be one and never ends is not waited
/// for for ever, nor does it grow.
#[rstest]
fn a_message_is_never_longer_than_there_can_be() -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut session = modem.session(Duration::from_secs(1))?;
    let mut items = vec![DataItem::Mac(FAR)];
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let add = true;
    items.extend(vec![DataItem::Address { add, address }; 3000]);
    let longest = Message::new(MessageKind::DestinationUp, items);
    ensure!(longest.to_bytes().len() > 60_000);
    session.send(&longest)?;
    assert_eq!(session.receive()?.kind, MessageKind::DestinationUpResponse);
    session.send_bytes(&[0, 7, 0xff, 0xff, 0, 7])?;
    assert_eq!(session.terminated()?, StatusCode::TIMED_OUT);
    lab.finish()
}

/// More destinations than anybody has: so many are kept, the modem hears that no more are wanted, the
/// log has a line, and the daemon does its work.
#[rstest]
fn a_flood_of_destinations_is_bounded() -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let pair = lab.stage.world.pair(Family::V4)?;
    let mut session = modem.session(QUIET)?;
    let most = pepd_dlep::session::MOST;
    let before = lab
        .stage
        .pepd
        .as_ref()
        .context("the daemon")?
        .resident_bytes()?;
    let mut refused = 0;
    for number in 0..3 * most {
        let address = MacAddress::Eui64(u64::try_from(number)?.to_be_bytes());
        let items = [DataItem::Mac(address)];
        session.send(&Message::new(MessageKind::DestinationUp, items))?;
        let answer = session.receive()?;
        let code = answer.status().context("a status")?.code;
        refused += usize::from(code == StatusCode::NOT_INTERESTED);
    }
    assert_eq!(refused, 2 * most);
    pair.exchange(BYTES)?;
    let after = lab
        .stage
        .pepd
        .as_ref()
        .context("the daemon")?
        .resident_bytes()?;
    assert!(after < before + (8 << 20), "{before} {after}");
    let lines = lab
        .log()
        .matches("more destinations than are looked at")
        .count();
    assert_eq!(lines, 1);
    lab.finish()
}

/// Only the destination that the file names counts.
#[rstest]
fn another_destination_says_nothing() -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, &format!("destination = \"{FAR}\""))?;
    let mut session = modem.session(QUIET)?;
    let other = MacAddress::Eui48([0, 0, 0x5e, 0, 0x53, 2]);
    session.send(&Message::new(
        MessageKind::DestinationUp,
        [DataItem::Mac(other)],
    ))?;
    let answer = session.receive()?;
    let code = answer.status().map(|status| status.code);
    assert_eq!(code, Some(StatusCode::NOT_INTERESTED));
    lab.wait_for_state("gone")?;
    up(&mut session)?;
    lab.wait_for_state("up")?;
    lab.finish()
}

/// A section that is taken out of the file ends its session, and one that is put in begins one; one that
/// stays keeps its own.
#[rstest]
fn a_reload_adds_and_removes_modems() -> Result<()> {
    require!(root, program("nft"));
    let keys = "modem = \"10.9.0.2\"";
    let mut lab = Lab::with("")?;
    let host = lab.stage.world.outsider();
    let modem = Modem::listen(host, ([10, 9, 0, 2], PORT).into(), TTL)?;
    assert!(lab.link()?.is_null());
    lab.reload(keys)?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    session.say(MessageKind::DestinationDown, FAR, &[])?;
    lab.wait_for_state("gone")?;
    lab.reload(keys)?;
    up(&mut session)?;
    lab.wait_for_state("up")?;
    assert_eq!(lab.link()?["modem"]["sessions"], 1);
    session.say(MessageKind::DestinationDown, FAR, &[])?;
    lab.wait_for_state("gone")?;
    lab.reload("")?;
    assert_eq!(session.terminated()?, StatusCode::SHUTTING_DOWN);
    lab.finish()
}
