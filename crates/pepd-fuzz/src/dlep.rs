//! What a modem sends, or whoever claims to be one: a datagram, or all of a session.

use std::time::{Duration, Instant};

use pepd_dlep::session::{Action, Event, Report, Settings, State};
use pepd_dlep::{Message, Signal, message};

/// What is understood is understood again as what is made of it, nothing is read beyond its end, and a
/// session does little for each message, ends once, and says nothing after.
pub fn run(bytes: &[u8]) {
    if let Some(signal) = Signal::read(bytes) {
        assert_eq!(Signal::read(&signal.to_bytes()), Some(signal));
    }
    let settings = Settings {
        heartbeat: Duration::from_secs(5),
        peer_type: "pepd".to_owned(),
        destination: None,
    };
    let mut now = Instant::now();
    let (mut state, _) = State::begin(&settings, now);
    let (mut rest, mut ends) = (bytes, 0);
    while let Some((message, length)) = Message::read(rest) {
        assert!((4..=message::LONGEST).contains(&length));
        rest = &rest[length..];
        if let Ok(message) = &message {
            // A message that came in one piece fits into one.
            let again = Message::read(&message.to_bytes());
            assert_eq!(
                again.and_then(|(again, _)| again.ok()).as_ref(),
                Some(message)
            );
        }
        let was_over = state == State::Ended;
        for event in [Event::Received(message), Event::Tick] {
            let (next, actions) = state.on(event, now);
            assert!(actions.len() <= if was_over { 0 } else { 3 });
            let is_end = |it: &&Action| matches!(it, Action::Report(Report::Ended(_)));
            ends += actions.iter().filter(is_end).count();
            state = next;
        }
        now += Duration::from_millis(100);
    }
    assert!(ends <= 1);
    assert!(state.deadline().is_some() || state == State::Ended);
}
