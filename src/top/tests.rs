//! What the screen looks like, and what keys do.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use insta::assert_snapshot;
use pepd_admin::View;
use pepd_admin::fixture::{self, Fixture};
use pepd_admin::wire::{FlowList, LinkReport};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rstest::rstest;

use super::app::{App, KeyOutcome};
use super::feed::{Figures, Update};
use super::screen;

fn figures(flows: u64, open: Option<u64>) -> Update {
    let view = Fixture::new(flows);
    let mut list = view.flows();
    list.sort_by(|a, b| pepd_admin::wire::FlowSort::Goodput.compare(a, b));
    Update::Figures(Box::new(Figures {
        status: view.status(),
        list: FlowList {
            total: list.len(),
            matching: list.len(),
            flows: list,
        },
        flow: open.map(|id| (id, view.flow(id).zip(view.history(id)))),
    }))
}

fn app(flows: u64) -> App {
    let mut app = App::new(fixture::status(flows));
    for _ in 0..30 {
        app.apply(figures(flows, None));
    }
    app
}

fn press(app: &mut App, code: KeyCode) -> KeyOutcome {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn drawn(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, app)).unwrap();
    terminal.backend().to_string()
}

#[rstest]
#[case::usual(80, 24)]
#[case::large(120, 40)]
#[case::huge(200, 60)]
fn the_list(#[case] width: u16, #[case] height: u16) {
    let mut app = app(120);
    press(&mut app, KeyCode::Down);
    assert_snapshot!(
        format!("list_{width}x{height}"),
        drawn(&mut app, width, height)
    );
}

#[rstest]
#[case::usual(80, 24)]
#[case::large(120, 40)]
#[case::huge(200, 60)]
fn one_connection(#[case] width: u16, #[case] height: u16) {
    let mut app = app(120);
    press(&mut app, KeyCode::Enter);
    let id = app.open.as_ref().unwrap().id;
    app.apply(figures(120, Some(id)));
    assert_snapshot!(
        format!("flow_{width}x{height}"),
        drawn(&mut app, width, height)
    );
}

#[test]
fn a_daemon_that_has_just_started() {
    let mut status = fixture::status(0);
    status.pairs.clear();
    status.legs.clear();
    status.peers.clear();
    assert_snapshot!(drawn(&mut App::new(status), 80, 24));
}

#[rstest]
#[case(10, 3)]
#[case(39, 9)]
#[case(40, 10)]
#[case(60, 12)]
#[case(500, 200)]
#[case(1, 1)]
fn any_size_is_survived(#[case] width: u16, #[case] height: u16) {
    let mut app = app(120);
    drawn(&mut app, width, height);
    press(&mut app, KeyCode::Enter);
    app.apply(figures(120, app.open.as_ref().map(|open| open.id)));
    drawn(&mut app, width, height);
}

#[test]
fn a_daemon_that_is_away_is_said_to_be_and_comes_back() {
    let mut app = app(3);
    app.apply(Update::Unreachable("no daemon answers at /x".to_owned()));
    assert!(drawn(&mut app, 80, 24).contains("AWAY, trying each second: no daemon answers at /x"));
    app.apply(figures(3, None));
    let screen = drawn(&mut app, 80, 24);
    assert!(!screen.contains("AWAY"), "{screen}");
    assert!(screen.contains("the daemon answers again"), "{screen}");
}

#[test]
fn a_link_that_is_gone_is_seen() {
    let mut app = app(3);
    press(&mut app, KeyCode::Enter);
    let id = app.open.as_ref().unwrap().id;
    let Update::Figures(mut figures) = figures(3, Some(id)) else {
        unreachable!()
    };
    assert!(!drawn(&mut app, 120, 40).contains("GONE"));
    figures.status.links[0].state = LinkReport::Gone;
    let (_, open) = figures.flow.as_mut().unwrap();
    open.as_mut().unwrap().0.upstream_leg.link = LinkReport::Gone;
    app.apply(Update::Figures(figures));
    let screen = drawn(&mut app, 120, 40);
    assert!(
        screen.contains("link GONE") && screen.contains(" RTT – (least"),
        "{screen}"
    );
    press(&mut app, KeyCode::Esc);
    let screen = drawn(&mut app, 80, 24);
    assert!(screen.contains("[leg.satellite] GONE"), "{screen}");
}

/// What a leg's rate is limited by, and what load adds to its round trips, is seen at 80 columns.
#[test]
fn the_legs_that_are_used_have_a_line_each() {
    let mut app = app(3);
    let screen = drawn(&mut app, 80, 24);
    let radio = screen.lines().find(|line| line.contains("radio")).unwrap();
    assert!(
        radio.contains("21.2 ms idle 25.8 ms busy  the link"),
        "{screen}"
    );
    let Update::Figures(mut figures) = figures(3, None) else {
        unreachable!()
    };
    figures.status.rates[0].limit = None;
    figures.status.legs[0].resent = None;
    app.apply(Update::Figures(figures));
    let screen = drawn(&mut app, 140, 40);
    assert!(
        screen.contains("busy (p95 31.3 ms)   5.2 % lost 4.80 ms queue  idle"),
        "{screen}"
    );
    assert!(!screen.contains("│ lan "), "it is not used: {screen}");
}

/// The new daemon's connection 2 is another one.
#[test]
fn a_restart_is_told_and_leaves_the_connection_that_is_gone() {
    let mut app = app(3);
    press(&mut app, KeyCode::Enter);
    assert!(app.open.is_some());
    let Update::Figures(mut restarted) = figures(3, None) else {
        unreachable!()
    };
    restarted.status.started += 100_000.0;
    app.apply(Update::Figures(restarted));
    assert!(app.open.is_none());
    assert!(drawn(&mut app, 80, 24).contains("the daemon has been restarted"));
}

#[test]
fn the_selection_stays_with_its_connection() {
    let mut app = app(10);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    let id = app.list.flows[app.table.selected().unwrap()].id;
    app.apply(figures(2, None));
    assert_eq!(app.table.selected(), Some(1), "the last one that there is");
    app.apply(figures(10, None));
    press(&mut app, KeyCode::Down);
    assert_eq!(app.list.flows[app.table.selected().unwrap()].id, id);
    app.apply(figures(0, None));
    assert_eq!(app.table.selected(), None);
    press(&mut app, KeyCode::Enter);
    assert!(app.open.is_none(), "nothing to open");
}

#[test]
fn a_filter_is_asked_for() {
    let mut app = app(10);
    press(&mut app, KeyCode::Char('/'));
    for letter in "b 10.1.0.0/24x".chars() {
        press(&mut app, KeyCode::Char(letter));
    }
    press(&mut app, KeyCode::Backspace);
    press(&mut app, KeyCode::Enter);
    let query = app.request().query;
    assert_eq!(query.campus.as_deref(), Some("b"));
    assert_eq!(query.end.unwrap().to_string(), "10.1.0.0/24");
    assert!(drawn(&mut app, 120, 40).contains("match `b 10.1.0.0/24`"));
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.request().query.campus, None);
}

#[test]
fn a_pause_holds_the_figures_and_q_ends() {
    let mut app = app(10);
    press(&mut app, KeyCode::Char(' '));
    app.apply(figures(50, None));
    assert_eq!(app.list.total, 10);
    press(&mut app, KeyCode::Char(' '));
    app.apply(figures(50, None));
    assert_eq!(app.list.total, 50);
    assert_eq!(press(&mut app, KeyCode::Char('q')), KeyOutcome::Quit);
}

#[test]
fn sorting_goes_round() {
    let mut app = app(1);
    let first = app.sort;
    press(&mut app, KeyCode::Char('s'));
    assert_ne!(app.sort, first);
    press(&mut app, KeyCode::Char('S'));
    assert_eq!(app.sort, first);
}
