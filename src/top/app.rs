//! What is on the screen, and what keys do to it. Reads no clock and does no I/O.

use std::collections::{BTreeMap, VecDeque};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use pepd_admin::wire::{FlowHistory, FlowList, FlowQuery, FlowSnapshot, FlowSort, Phase, Status};
use ratatui::widgets::TableState;

use super::feed::{Figures, Request, Update};
use crate::cli;
use crate::ui::labels;

/// Connections fetched each second: more than any terminal has lines.
const FETCHED: usize = 500;

/// Seconds of the sum of all rates that are kept: as wide as a terminal may be.
const RATES: usize = 300;

/// Lines that a page moves by.
const PAGE: usize = 10;

/// Whether a key lets the screen go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// It does.
    GoOn,
    /// The screen is to close.
    Quit,
}

/// The one connection that is looked at.
#[derive(Clone, Debug)]
pub struct OpenFlow {
    /// Its ID.
    pub id: u64,
    /// Its last figures.
    pub figures: Option<(FlowSnapshot, FlowHistory)>,
    /// Whether it has ended.
    pub ended: bool,
}

/// The screen's state.
#[derive(Debug)]
pub struct App {
    /// The daemon's last status.
    pub status: Status,
    /// Its last list.
    pub list: FlowList,
    /// Goodput of all pairs together, up and down, bits per second; the latest last.
    pub rates: VecDeque<[f64; 2]>,
    /// What was sent over each leg, bits per second; the latest last.
    pub legs: BTreeMap<String, VecDeque<f64>>,
    /// The reason why there is no answer at the moment.
    pub unreachable: Option<String>,
    /// A note on what has happened, until the next key.
    pub note: Option<String>,
    /// The connection that is looked at instead of the list.
    pub open: Option<OpenFlow>,
    /// The order of the list.
    pub sort: FlowSort,
    /// The filter that the list is narrowed down to.
    pub filter: Filter,
    /// The filter while it is typed.
    pub typing: Option<String>,
    /// Whether new figures are left out.
    pub paused: bool,
    /// The selected line, and the first one shown.
    pub table: TableState,
}

impl App {
    /// Makes the screen of a daemon that has been asked for its status only.
    pub fn new(status: Status) -> Self {
        let mut app = Self {
            status,
            list: FlowList {
                total: 0,
                matching: 0,
                flows: Vec::new(),
            },
            rates: VecDeque::new(),
            legs: BTreeMap::new(),
            unreachable: None,
            note: None,
            open: None,
            sort: FlowSort::default(),
            filter: Filter::default(),
            typing: None,
            paused: false,
            table: TableState::default(),
        };
        app.remember_rates();
        app
    }

    /// Gives what has to be asked for.
    pub fn request(&self) -> Request {
        let Filter {
            campus, end, phase, ..
        } = self.filter.clone();
        Request {
            query: FlowQuery {
                campus,
                end,
                phase,
                sort: self.sort,
                limit: Some(FETCHED),
                ..FlowQuery::default()
            },
            flow: self.open.as_ref().map(|open| open.id),
        }
    }

    /// Takes over what the daemon has answered, or that it has not.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Unreachable(why) => self.unreachable = Some(why),
            Update::Figures(figures) => {
                let was_unreachable = self.unreachable.take().is_some();
                if figures.status.started > self.status.started + 1.0 {
                    // Its connections count from one again.
                    self.open = None;
                    self.rates.clear();
                    self.legs.clear();
                    self.note = Some("the daemon has been restarted".to_owned());
                } else if was_unreachable {
                    self.note = Some("the daemon answers again".to_owned());
                }
                if !self.paused {
                    self.show(*figures);
                }
            }
        }
    }

    fn show(&mut self, figures: Figures) {
        let selected = self.selected().map(|flow| flow.id);
        let Figures { status, list, flow } = figures;
        self.status = status;
        self.list = list;
        self.remember_rates();
        let place = self.list.flows.iter().position(|f| Some(f.id) == selected);
        self.select(place.or(self.table.selected()).unwrap_or(0));
        if let (Some(open), Some((id, figures))) = (&mut self.open, flow)
            && open.id == id
        {
            open.ended = figures.is_none();
            if figures.is_some() {
                open.figures = figures;
            }
        }
    }

    fn remember_rates(&mut self) {
        let pairs = &self.status.pairs;
        // The sum of nothing would be -0.0.
        let sum = pairs.iter().fold([0.0, 0.0], |[up, down], pair| {
            [up + pair.up.goodput, down + pair.down.goodput]
        });
        self.rates.push_back(sum);
        if self.rates.len() > RATES {
            self.rates.pop_front();
        }
        for leg in &self.status.legs {
            let sent = self.legs.entry(leg.leg.clone()).or_default();
            sent.push_back(leg.sent);
            if sent.len() > RATES {
                sent.pop_front();
            }
        }
    }

    fn selected(&self) -> Option<&FlowSnapshot> {
        self.list.flows.get(self.table.selected()?)
    }

    fn select(&mut self, at: usize) {
        let last = self.list.flows.len().checked_sub(1);
        self.table.select(last.map(|last| at.min(last)));
    }

    /// Does what a key asks for.
    pub fn key(&mut self, key: KeyEvent) -> KeyOutcome {
        self.note = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => KeyOutcome::Quit,
                _ => KeyOutcome::GoOn,
            };
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return KeyOutcome::GoOn;
        }
        match key.code {
            KeyCode::Char('q') => return KeyOutcome::Quit,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left if self.open.is_some() => {
                self.open = None;
            }
            _ if self.open.is_some() => {}
            code => self.list_key(code),
        }
        KeyOutcome::GoOn
    }

    fn list_key(&mut self, code: KeyCode) {
        let at = self.table.selected().unwrap_or(0);
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.select(at.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(at.saturating_sub(1)),
            KeyCode::PageDown => self.select(at.saturating_add(PAGE)),
            KeyCode::PageUp => self.select(at.saturating_sub(PAGE)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Enter | KeyCode::Right => {
                self.open = self.selected().map(|flow| OpenFlow {
                    id: flow.id,
                    figures: None,
                    ended: false,
                });
            }
            KeyCode::Char('s') => self.sort = next(self.sort, 1),
            KeyCode::Char('S') => self.sort = next(self.sort, FlowSort::ALL.len() - 1),
            KeyCode::Char('/') => self.typing = Some(self.filter.text.clone()),
            KeyCode::Esc => self.filter = Filter::default(),
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        let Some(text) = &mut self.typing else { return };
        match code {
            KeyCode::Enter => {
                self.filter = Filter::new(text);
                self.typing = None;
                self.select(0);
            }
            KeyCode::Esc => self.typing = None,
            KeyCode::Backspace => _ = text.pop(),
            KeyCode::Char(letter) if !letter.is_control() => text.push(letter),
            _ => {}
        }
    }
}

fn next(sort: FlowSort, by: usize) -> FlowSort {
    let all = FlowSort::ALL;
    let at = all.iter().position(|(one, _)| *one == sort).unwrap_or(0);
    all[(at + by) % all.len()].0
}

/// Returns the phase of this name, in full or as the tables have it.
fn phase(word: &str) -> Option<Phase> {
    let short = |phase: &Phase| labels::phase_name(*phase) == word;
    cli::phase(word).or_else(|| Phase::ALL.into_iter().find(short))
}

/// The filter that the list is narrowed down to. A word is a phase, an address or prefix of either
/// end, or the name of a campus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The filter as it was typed.
    pub text: String,
    campus: Option<String>,
    end: Option<pepd_admin::wire::Place>,
    phase: Option<Phase>,
}

impl Filter {
    fn new(text: &str) -> Self {
        let mut filter = Self {
            text: text.trim().to_owned(),
            ..Self::default()
        };
        for word in text.split_whitespace() {
            if let Some(phase) = phase(word) {
                filter.phase = Some(phase);
            } else if let Ok(place) = word.parse() {
                filter.end = Some(place);
            } else {
                filter.campus = Some(word.to_owned());
            }
        }
        filter
    }
}
