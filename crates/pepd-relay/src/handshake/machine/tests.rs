use std::fmt::Write as _;

use super::*;
use crate::handshake::event::Ticket;
use crate::handshake::verdict::Unreachable;

type TestState = State<&'static str, &'static str, &'static str>;
type TestEvent = Event<&'static str, &'static str, &'static str>;
type TestStep = Step<&'static str, &'static str, &'static str>;

const OLD: SequenceNumber = SequenceNumber(1);
const NEW: SequenceNumber = SequenceNumber(2);

fn dialing(now: Instant, leg: LegSyn, dial: Option<&'static str>) -> TestState {
    State::Dialing(Dialing {
        ticket: Ticket(1),
        number: OLD,
        syn: "held",
        dial,
        leg,
        first_syn: now,
        last_syn: now,
    })
}

fn answered(now: Instant, with_data: bool, ack: Option<&'static str>) -> TestState {
    State::Answered(Answered {
        ticket: Ticket(1),
        number: OLD,
        upstream: "leg",
        ack,
        leg: LegSyn::Sent { with_data },
        since: now,
    })
}

/// Lists every kind of state, with what tells it from others of its kind.
fn states(now: Instant) -> Vec<TestState> {
    let sent = |with_data| LegSyn::Sent { with_data };
    vec![
        State::Unknown,
        State::Remembered(OLD, PastVerdict::Routed),
        State::Remembered(OLD, PastVerdict::Split),
        dialing(now, LegSyn::Unsent, None),
        dialing(now, LegSyn::Unsent, Some("dial")),
        dialing(now, sent(false), Some("dial")),
        dialing(now, sent(true), Some("dial")),
        answered(now, false, None),
        answered(now, false, Some("ack")),
        answered(now, true, None),
        State::Evicting(Evicting {
            ticket: Ticket(1),
            number: OLD,
            syn: "held",
            verdict: SynVerdict::Bypass(UnsplitReason::Full),
        }),
    ]
}

/// Lists every kind of event; of a SYN with every kind of place, which only an unknown flow looks
/// at.
fn events(state: &TestState) -> Vec<TestEvent> {
    let syn = |place| Event::Syn {
        number: NEW,
        syn: "syn",
        place,
        begun: Instant::now(),
    };
    let mut places = vec![
        Place::Free(Ticket(2)),
        Place::NoListener,
        Place::Late,
        Place::Full,
        Place::OverBudget,
        Place::Crossing { leg_is_open: false },
        Place::Crossing { leg_is_open: true },
    ];
    match state {
        State::Unknown => {}
        State::Remembered(..) => places.truncate(2),
        _ => places.truncate(1),
    }
    let mut events: Vec<_> = places.into_iter().map(syn).collect();
    events.extend([
        Event::PortReused,
        Event::DialStarted("dial"),
        Event::LegSent { with_data: false },
        Event::LegSent { with_data: true },
        Event::Answered("leg"),
        Event::DialFailed(SynVerdict::Refused),
        Event::DialFailed(SynVerdict::Silence),
        Event::DialFailed(SynVerdict::Split),
        Event::DialFailed(SynVerdict::Bypass(UnsplitReason::NotPossible)),
        Event::IcmpError(Unreachable::Host),
        Event::ClientReset,
        Event::FinalAck("new ack"),
        Event::Accepted,
        Event::Evict(SynVerdict::Bypass(UnsplitReason::Blocked)),
        Event::DialEnded,
        Event::Expired,
        Event::Cleared(SynVerdict::Superseded),
    ]);
    events
}

fn name(state: &TestState) -> String {
    let leg = |leg: &LegSyn| match leg {
        LegSyn::Unsent => "its SYN unsent",
        LegSyn::Sent { with_data: false } => "its SYN sent",
        LegSyn::Sent { with_data: true } => "its SYN sent with data",
    };
    match state {
        State::Unknown => "Unknown".into(),
        State::Remembered(_, past) => format!("Remembered, {past:?}"),
        State::Dialing(Dialing {
            dial: None,
            leg: LegSyn::Unsent,
            ..
        }) => "Dialing, not started".into(),
        State::Dialing(dialing) => format!("Dialing, {}", leg(&dialing.leg)),
        State::Answered(answered) => {
            let ack = answered.ack.map_or("", |_| " + ACK");
            format!("Answered, {}{ack}", leg(&answered.leg))
        }
        State::Evicting(_) => "Evicting".into(),
    }
}

fn event_name(event: &TestEvent) -> String {
    match event {
        Event::Syn { place, .. } => match place {
            Place::Free(_) => "Syn".into(),
            place => format!("Syn, {place:?}"),
        },
        event => format!("{event:?}"),
    }
}

fn and_ack(ack: &Option<&'static str>) -> String {
    ack.map_or_else(String::new, |ack| format!(", and {ack}"))
}

fn describe(step: &TestStep) -> String {
    let mut line = match &step.action {
        Action::Nothing => String::from("nothing"),
        Action::Illegal(_) => String::from("ILLEGAL"),
        Action::Dial(_) => String::from("dial"),
        Action::Decide(syn, verdict) => format!("{syn}: {verdict:?}"),
        Action::Release(ack) => format!("{ack}: goes on"),
        Action::Drop(ack) => format!("{ack}: dropped"),
        Action::AwaitEnd(_, dial) => format!("await the end of {dial}"),
        Action::Join(leg, ack) => format!("join with {leg}{}", and_ack(ack)),
        Action::DialAnew(syn, dial) => format!("{syn}: needed no more; after {dial:?} dial anew"),
        Action::Close(leg, ack) => format!("close {leg}{}", and_ack(ack)),
        Action::TooLate(leg) => format!("close {leg}, too late"),
    };
    if let Some(dial) = step.stop {
        write!(line, "; stop {dial}").unwrap();
    }
    line
}

/// The whole graph: each state, and what each event makes of it.
#[test]
fn the_transitions() {
    let now = Instant::now();
    let mut graph = String::new();
    for index in 0..states(now).len() {
        let from = states(now).remove(index);
        writeln!(graph, "{}", name(&from)).unwrap();
        for event in events(&from) {
            let state = states(now).remove(index);
            let what = event_name(&event);
            let step = state.on(event, now);
            if matches!(step.action, Action::Illegal(_)) {
                assert_eq!((&step.next, &step.stop), (&from, &None));
            }
            let next = if name(&step.next) == name(&from) {
                "stays".into()
            } else {
                format!("▶ {}", name(&step.next))
            };
            writeln!(graph, "    {what:<42} {next:<34} {}", describe(&step)).unwrap();
        }
    }
    insta::assert_snapshot!(graph);
}

#[test]
fn a_port_is_reused_only_where_its_leg_has_said_something() {
    let now = Instant::now();
    for state in states(now) {
        assert!(!state.is_port_reused(OLD), "a retransmission");
        let illegal = matches!(
            states(now)
                .into_iter()
                .find(|other| *other == state)
                .unwrap()
                .on(Event::PortReused, now)
                .action,
            Action::Illegal(_)
        );
        assert_eq!(state.is_port_reused(NEW), !illegal, "{state:?}");
    }
}

#[test]
fn whoever_waits_has_a_deadline() {
    let now = Instant::now();
    for state in states(now) {
        let waits = state.place().is_some();
        assert_eq!(state.deadline().is_some(), waits, "{state:?}");
        let illegal = matches!(state.on(Event::Expired, now).action, Action::Illegal(_));
        assert_eq!(illegal, !waits);
    }
}
