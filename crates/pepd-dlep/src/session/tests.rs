use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::examples::destination_up;

const SECOND: Duration = Duration::from_secs(1);
const FAR: MacAddress = MacAddress::Eui48([0, 0, 0x5e, 0, 0x53, 1]);
const OTHER: MacAddress = MacAddress::Eui48([0, 0, 0x5e, 0, 0x53, 2]);

fn settings() -> Settings {
    Settings {
        heartbeat: 5 * SECOND,
        peer_type: "pepd".to_owned(),
        destination: None,
    }
}

fn accepted(status: StatusCode) -> Event {
    let items = [
        DataItem::Status(status.into()),
        DataItem::PeerType {
            secured: false,
            description: "radio".to_owned(),
        },
        DataItem::HeartbeatInterval(1000),
        DataItem::MaximumRateReceive(9_000_000),
        DataItem::MaximumRateTransmit(9_000_000),
        DataItem::CurrentRateReceive(8_000_000),
        DataItem::CurrentRateTransmit(4_000_000),
        DataItem::Latency(250_000),
    ];
    received(MessageKind::SessionInitializationResponse, &items)
}

fn received(kind: MessageKind, items: &[DataItem]) -> Event {
    Event::Received(Ok(Message::new(kind, items)))
}

fn about(kind: MessageKind, address: MacAddress, items: &[DataItem]) -> Event {
    let items = [&[DataItem::Mac(address)], items].concat();
    received(kind, &items)
}

fn sent(kind: MessageKind, code: StatusCode, address: Option<MacAddress>) -> Action {
    Action::Send(with_status(kind, code, address))
}

fn ended_for(end: End) -> Action {
    Action::Report(Report::Ended(end))
}

fn link(transmit: u64) -> Action {
    let metrics = Metrics {
        transmit: Some(transmit),
        receive: Some(8_000_000),
        latency: Some(250_000),
    };
    let is_up = true;
    Action::Report(Report::Link(Link { is_up, metrics }))
}

fn gone() -> Action {
    Action::Report(Report::Link(Link::default()))
}

fn in_session(settings: &Settings, now: Instant) -> State {
    let (state, actions) = State::begin(settings, now);
    assert!(matches!(&actions[..], [Action::Send(_)]), "{actions:?}");
    let (state, actions) = state.on(accepted(StatusCode::SUCCESS), now);
    let modem = "radio".to_owned();
    assert_eq!(actions, [Action::Report(Report::Begun { modem })]);
    state
}

#[test]
fn a_link_goes_and_comes_back() {
    let now = Instant::now();
    let state = in_session(&settings(), now);
    let (state, actions) = state.on(about(MessageKind::DestinationUp, FAR, &[]), now);
    let response = MessageKind::DestinationUpResponse;
    let answered = |address| sent(response, StatusCode::SUCCESS, Some(address));
    assert_eq!(actions, [answered(FAR), link(4_000_000)]);
    // The slower of two destinations is what may be relied upon.
    let slow = [DataItem::CurrentRateTransmit(1_000_000)];
    let (state, actions) = state.on(about(MessageKind::DestinationUp, OTHER, &slow), now);
    assert_eq!(actions, [answered(OTHER), link(1_000_000)]);
    let faster = [DataItem::CurrentRateTransmit(2_000_000)];
    let (state, actions) = state.on(about(MessageKind::DestinationUpdate, OTHER, &faster), now);
    assert_eq!(actions, [link(2_000_000)]);
    // For all of them.
    let all = [DataItem::CurrentRateTransmit(3_000_000)];
    let (state, actions) = state.on(received(MessageKind::SessionUpdate, &all), now);
    let response = sent(
        MessageKind::SessionUpdateResponse,
        StatusCode::SUCCESS,
        None,
    );
    assert_eq!(actions, [response, link(3_000_000)]);
    let response = MessageKind::DestinationDownResponse;
    let answered = |address| sent(response, StatusCode::SUCCESS, Some(address));
    let (state, actions) = state.on(about(MessageKind::DestinationDown, FAR, &[]), now);
    assert_eq!(actions, [answered(FAR)]);
    let (state, actions) = state.on(about(MessageKind::DestinationDown, OTHER, &[]), now);
    assert_eq!(actions, [answered(OTHER), gone()]);
    let (_, actions) = state.on(about(MessageKind::DestinationUp, OTHER, &[]), now);
    assert_eq!(actions[1..], [link(3_000_000)]);
}

#[test]
fn a_modem_without_destinations_has_a_moment_to_announce_one() {
    let now = Instant::now();
    let state = in_session(&settings(), now);
    let (state, actions) = state.on(received(MessageKind::Heartbeat, &[]), now + SECOND);
    assert_eq!(actions, []);
    let at = state.deadline().unwrap();
    assert_eq!(at, now + FIRST_DESTINATION);
    let (_, actions) = state.on(Event::Tick, at);
    assert_eq!(actions, [gone()]);
}

#[test]
fn only_the_destination_that_counts_is_asked_for() {
    let now = Instant::now();
    let settings = Settings {
        destination: Some(FAR),
        ..settings()
    };
    let state = in_session(&settings, now);
    let (state, actions) = state.on(about(MessageKind::DestinationUp, OTHER, &[]), now);
    let response = MessageKind::DestinationUpResponse;
    let refused = sent(response, StatusCode::NOT_INTERESTED, Some(OTHER));
    assert_eq!(actions, [refused]);
    // A modem that speaks of it nevertheless does no harm.
    let (state, actions) = state.on(about(MessageKind::DestinationUpdate, OTHER, &[]), now);
    assert_eq!(actions, []);
    let (_, actions) = state.on(about(MessageKind::DestinationUp, FAR, &[]), now);
    assert_eq!(actions[1..], [link(4_000_000)]);
}

#[test]
fn heartbeats_go_out_and_silence_ends_the_session() {
    let start = Instant::now();
    let mut state = in_session(&settings(), start);
    let mut heartbeats = 0;
    for second in 1..=10 {
        let now = start + second * SECOND;
        let (next, _) = state.on(received(MessageKind::Heartbeat, &[]), now);
        let (next, actions) = next.on(Event::Tick, now);
        let heartbeat = Action::Send(Message::new(MessageKind::Heartbeat, []));
        heartbeats += actions.iter().filter(|it| **it == heartbeat).count();
        state = next;
    }
    assert_eq!(heartbeats, 2);
    // Two of the modem's intervals.
    let at = state.deadline().unwrap();
    assert_eq!(at, start + 12 * SECOND);
    let (state, actions) = state.on(Event::Tick, at);
    let told = sent(MessageKind::SessionTermination, StatusCode::TIMED_OUT, None);
    assert_eq!(actions, [ended_for(End::Silent), told]);
    let at = state.deadline().unwrap();
    let (state, actions) = state.on(Event::Tick, at);
    assert_eq!((state, &actions[..]), (State::Ended, &[Action::Close][..]));
}

#[test]
fn what_has_no_place_ends_the_session_with_its_status() {
    let now = Instant::now();
    let response = received(MessageKind::SessionTerminationResponse, &[]);
    let unexpected = StatusCode::UNEXPECTED_MESSAGE;
    let kind = MessageKind::SessionTerminationResponse;
    let down = about(MessageKind::DestinationDown, FAR, &[]);
    let unknown = MessageError::Unknown(99);
    let cases = [
        (response, End::Unexpected(kind), unexpected),
        (
            down,
            End::UnknownDestination(FAR),
            StatusCode::INVALID_DESTINATION,
        ),
        (
            Event::Received(Err(unknown)),
            End::Invalid(unknown),
            StatusCode::UNKNOWN_MESSAGE,
        ),
        (Event::Stop, End::Stopped, StatusCode::SHUTTING_DOWN),
    ];
    for (event, end, code) in cases {
        let (state, actions) = in_session(&settings(), now).on(event, now);
        let told = sent(MessageKind::SessionTermination, code, None);
        assert_eq!(actions, [ended_for(end), told]);
        // What else comes is too late.
        let (state, actions) = state.on(about(MessageKind::DestinationUp, FAR, &[]), now);
        assert_eq!(actions, []);
        let (state, actions) = state.on(received(kind, &[]), now);
        assert_eq!((state, &actions[..]), (State::Ended, &[Action::Close][..]));
    }
}

#[test]
fn a_session_that_the_modem_does_not_want_or_ends() {
    let now = Instant::now();
    let (state, _) = State::begin(&settings(), now);
    let (state, actions) = state.on(accepted(StatusCode::REQUEST_DENIED), now);
    let refused = End::Refused(StatusCode::REQUEST_DENIED.into());
    assert_eq!(actions, [ended_for(refused), Action::Close]);
    assert_eq!(state, State::Ended);

    let (state, _) = State::begin(&settings(), now);
    let (_, actions) = state.on(received(MessageKind::Heartbeat, &[]), now);
    assert_eq!(
        actions[0],
        ended_for(End::Unexpected(MessageKind::Heartbeat))
    );

    let (state, _) = State::begin(&settings(), now);
    let at = state.deadline().unwrap();
    let (_, actions) = state.on(Event::Tick, at);
    assert_eq!(actions[0], ended_for(End::NotAccepted));

    let state = in_session(&settings(), now);
    let status = StatusCode::SHUTTING_DOWN;
    let items = [DataItem::Status(status.into())];
    let event = received(MessageKind::SessionTermination, &items);
    let (state, actions) = state.on(event, now);
    let response = Message::new(MessageKind::SessionTerminationResponse, []);
    let by_modem = ended_for(End::ByModem(status.into()));
    assert_eq!(actions, [by_modem, Action::Send(response), Action::Close]);
    assert_eq!(state, State::Ended);
}

#[test]
fn destinations_are_bounded() {
    let now = Instant::now();
    let mut state = in_session(&settings(), now);
    let mut reports = 0;
    for number in 0..3 * MOST {
        let mut octets = [0; 8];
        octets.copy_from_slice(&number.to_be_bytes());
        let address = MacAddress::Eui64(octets);
        let (next, actions) = state.on(about(MessageKind::DestinationUp, address, &[]), now);
        let too_many = Action::Report(Report::TooMany);
        reports += actions.iter().filter(|it| **it == too_many).count();
        state = next;
    }
    assert_eq!(reports, 1);
    let State::InSession(session) = state else {
        panic!("{state:?}");
    };
    assert_eq!(session.destinations.len(), MOST);
}

fn any_event() -> impl Strategy<Value = Event> {
    let kind = (1_u16..=16).prop_map(|code| MessageKind::from_code(code).unwrap());
    let address = prop_oneof![Just(FAR), Just(OTHER)];
    prop_oneof![
        4 => (kind, address).prop_map(|(kind, address)| about(kind, address, &[])),
        4 => Just(()).prop_map(|()| accepted(StatusCode::SUCCESS)),
        4 => destination_up().prop_map(|message| Event::Received(Ok(message))),
        8 => Just(()).prop_map(|()| Event::Tick),
        1 => Just(()).prop_map(|()| Event::Lost),
        1 => Just(()).prop_map(|()| Event::Stop),
        1 => any::<u16>().prop_map(|code| Event::Received(Err(MessageError::Unknown(code)))),
    ]
}

proptest! {
    /// Whatever happens, a session that is not over has a deadline, does little at a time, ends once,
    /// and nothing happens after.
    #[test]
    fn a_session_ends_once(events in prop::collection::vec((any_event(), 0_u64..3000), 0..60)) {
        let mut now = Instant::now();
        let (mut state, _) = State::begin(&settings(), now);
        let (mut ends, mut closes) = (0, 0);
        for (event, later) in events {
            now += Duration::from_millis(later);
            let was_over = state == State::Ended;
            let (next, actions) = state.on(event, now);
            let most = if was_over { 0 } else { 3 };
            prop_assert!(actions.len() <= most);
            for action in &actions {
                ends += usize::from(matches!(action, Action::Report(Report::Ended(_))));
                closes += usize::from(*action == Action::Close);
                if let Action::Send(message) = action {
                    prop_assert!(Message::read(&message.to_bytes()).unwrap().0.is_ok());
                }
            }
            prop_assert_eq!(next.deadline().is_none(), next == State::Ended);
            prop_assert_eq!(closes == 1, next == State::Ended);
            state = next;
        }
        prop_assert!(ends <= 1 && closes <= ends);
    }
}
