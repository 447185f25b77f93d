//! Modems that are broken, or mean it: what they send ends their session or is bounded, and costs nobody else
//! anything.

use anyhow::{Context as _, Result, ensure};
use pepd_dlep::{DataItem, Message, MessageKind, StatusCode};
use pepd_testbed::modem::{FAR, Modem, Session, accepted};
use pepd_testbed::traffic::Rng;
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;

use super::lab::Lab;
use super::{BYTES, QUIET, up};
use crate::harness::LIMIT;

/// What the daemon's memory may grow by, whatever a modem sends.
const MEMORY: u64 = 16 << 20;

impl Lab {
    fn memory(&self) -> Result<u64> {
        self.stage
            .pepd
            .as_ref()
            .context("the daemon")?
            .resident_bytes()
    }

    /// The next session is one, whatever became of the one before.
    fn serves(self, modem: &Modem) -> Result<()> {
        let mut session = None;
        wait_until(LIMIT, "another session", || {
            session = modem.session(QUIET).ok();
            session.as_mut().is_some_and(|session| up(session).is_ok())
        })?;
        self.wait_for_state("up")?;
        self.finish()
    }
}

/// Begins a connection, and takes the router's question for a session.
fn asked(modem: &Modem) -> Result<Session> {
    let mut session = modem.accept()?;
    let kind = session.receive()?.kind;
    ensure!(kind == MessageKind::SessionInitialization, "{kind:?}");
    Ok(session)
}

/// Instead of an answer to the router's question for a session.
#[rstest]
#[case::nothing_but_noise(&[0xff; 3000])]
#[case::zeros(&[0; 3000])]
#[case::a_web_server(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")]
#[case::a_destination(&[0, 7, 0, 10, 0, 7, 0, 6, 0, 0, 0x5e, 0, 0x53, 1])]
#[case::the_question_itself(&[0, 1, 0, 13, 0, 5, 0, 4, 0, 0, 0x13, 0x88, 0, 4, 0, 1, 0])]
#[case::an_answer_without_items(&[0, 2, 0, 0])]
#[case::a_heartbeat(&[0, 16, 0, 0])]
fn what_is_no_answer_ends_the_session(#[case] bytes: &[u8]) -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut session = asked(&modem)?;
    session.send_bytes(bytes)?;
    let code = session.terminated()?;
    assert!(code.is_fatal(), "{code}");
    assert_eq!(lab.link()?["modem"]["sessions"], 0);
    // It says no more, and does not confirm: it is not waited for for ever.
    session.closed()?;
    lab.serves(&modem)
}

/// A session that is there, and then: noise, by the seed. Whatever it happens to say, the session ends, or
/// what was said was right.
#[rstest]
fn noise_harms_nobody(#[values(1, 2, 3, 4)] seed: u64) -> Result<()> {
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    let before = lab.memory()?;
    let mut rng = Rng::new(seed);
    let real = Message::new(
        MessageKind::DestinationUpdate,
        [
            DataItem::Mac(FAR),
            DataItem::CurrentRateTransmit(1_000_000),
            DataItem::Latency(9),
            DataItem::Mtu(1400),
        ],
    )
    .to_bytes();
    for _ in 0..100_000 {
        // Real ones, of which some bits are others, and cut off somewhere.
        let mut bytes = real.clone();
        for _ in 0..rng.between(0, 3) {
            let bit = usize::try_from(rng.between(0, 8 * bytes.len() as u64 - 1))?;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if rng.between(0, 50) == 0 {
            bytes.truncate(usize::try_from(rng.between(0, bytes.len() as u64))?);
        }
        if session.send_bytes(&bytes).is_err() {
            break;
        }
    }
    drop(session);
    let after = lab.memory()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    lab.serves(&modem)
}

/// Figures that no link has are shown as they are, and what is restarted by them goes on.
#[rstest]
fn figures_that_there_cannot_be_break_nothing(#[values(0, 1, u64::MAX)] figure: u64) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut session = modem.session(QUIET)?;
    let figures = [
        DataItem::MaximumRateReceive(figure),
        DataItem::MaximumRateTransmit(figure),
        DataItem::CurrentRateReceive(figure),
        DataItem::CurrentRateTransmit(figure),
        DataItem::Latency(figure),
        DataItem::Mtu(0),
    ];
    session.say(MessageKind::DestinationUp, FAR, &figures)?;
    // None where it is 0: it cannot say.
    let rate = match figure {
        0 => serde_json::Value::Null,
        rate => rate.into(),
    };
    lab.wait_for("the rate", |said| {
        said["transmit_rate"] == rate && said["session"].is_string()
    })?;
    let pair = lab.stage.world.pair(Family::V4)?;
    pair.exchange(BYTES)?;
    session.say(MessageKind::DestinationDown, FAR, &[])?;
    lab.wait_for_state("gone")?;
    session.say(MessageKind::DestinationUp, FAR, &figures)?;
    lab.wait_for_state("up")?;
    for words in ["status", "flows", "status --json", "flows --json"] {
        lab.ask(words)?;
    }
    assert!(
        lab.metrics()?
            .contains("pepd_link_latency_seconds{leg=\"wan\"}")
    );
    pair.exchange(BYTES)?;
    lab.finish()
}

/// A modem that says without end that its link is gone, up, fast and slow, and reads no answer: the log stays
/// short, memory does not grow, and who asks the daemon has an answer.
#[rstest]
fn a_modem_that_never_stops_is_bounded(#[values(true, false)] reads: bool) -> Result<()> {
    const LINES: usize = 60;
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let pair = lab.stage.world.pair(Family::V4)?;
    let mut session = modem.session(QUIET)?;
    up(&mut session)?;
    let (before, lines) = (lab.memory()?, lab.log().lines().count());
    let about = |kind, more: &[DataItem]| {
        Message::new(kind, [&[DataItem::Mac(FAR)], more].concat()).to_bytes()
    };
    let all = [
        about(MessageKind::DestinationDown, &[]),
        about(
            MessageKind::DestinationUp,
            &[DataItem::CurrentRateTransmit(8)],
        ),
        about(
            MessageKind::DestinationUpdate,
            &[DataItem::CurrentRateTransmit(1 << 40)],
        ),
    ]
    .concat();
    for round in 0..6_000 {
        if session.send_bytes(&all).is_err() {
            break;
        }
        if reads {
            for _ in 0..2 {
                session.receive()?;
            }
        }
        if round % 1000 == 0 {
            lab.link()?;
            pair.exchange(1000)?;
        }
    }
    let after = lab.memory()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    drop(session);
    let log = lab.log();
    let said = log.lines().count() - lines;
    assert!(said < LINES, "{said} lines: {log}");
    lab.serves(&modem)
}

/// A modem that refuses each session is asked again, ever more seldom, and the log has a line of that.
#[rstest]
fn a_modem_that_refuses_is_not_asked_all_the_time() -> Result<()> {
    const TIMES: usize = 4;
    require!(root, program("nft"));
    let (lab, modem) = Lab::direct(Family::V4, "")?;
    let mut refusal = accepted(QUIET);
    refusal.items[0] = DataItem::Status(StatusCode::REQUEST_DENIED.into());
    for _ in 0..TIMES {
        let mut session = asked(&modem)?;
        session.send(&refusal)?;
        session.closed()?;
    }
    let log = lab.log();
    let lines = log.matches("the modem refuses: request denied").count();
    assert!((1..TIMES).contains(&lines), "{log}");
    // It is none of which anything is known.
    assert!(lab.stage.world.probe(Family::V4)?.1);
    lab.serves(&modem)
}
