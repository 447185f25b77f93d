//! The daemon as a whole: pairs with their phases, legs, rates, limits, peers.

use pepd_admin::wire::{LimitUse, LinkReport, Liveness, PairSnapshot, PhaseSeconds, Status};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::app::App;
use super::style::faint;
use super::{legs, phases, spark};
use crate::ui::format;
use crate::ui::labels;

/// The height from which on there is room for a second line of sparklines.
const TALL: u16 = 35;

/// The number of pairs that are shown: those that carry most.
const PAIRS: usize = 6;

/// The number of legs that are shown: those by which most is sent.
const LEGS: u16 = 6;

/// Gives the lines that the summary takes out of `body`.
pub fn height(status: &Status, body: Rect) -> u16 {
    let pairs = u16::try_from(shown_pairs(status, body)).unwrap_or(0).max(1);
    // The border, the pairs, the legs, the rates; peers, links and limits.
    2 + pairs + shown_legs(status, body) + 2 * spark_height(body) + 1
}

fn shown_legs(status: &Status, body: Rect) -> u16 {
    // The smallest screens have hardly room for connections.
    let most = match body.height {
        ..16 => 0,
        16..TALL => 2,
        _ => LEGS,
    };
    u16::try_from(legs::used(status)).map_or(most, |used| used.min(most))
}

fn shown_pairs(status: &Status, body: Rect) -> usize {
    let most = if body.height < TALL { 2 } else { PAIRS };
    status.pairs.len().min(most)
}

fn spark_height(body: Rect) -> u16 {
    if body.height < TALL { 1 } else { 2 }
}

/// Draws the summary.
pub fn draw(frame: &mut Frame, app: &App, area: Rect, body: Rect) {
    let block = Block::bordered().title(" campus pairs ").title(
        phases::legend()
            .right_aligned()
            .patch_style(Style::new().remove_modifier(Modifier::DIM)),
    );
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // What is left after the pairs and the last line belongs to the two sparklines.
    let room = shown_legs(&app.status, body);
    let legs = legs::lines(app, usize::from(inner.width), room.into());
    let pairs = pairs(&app.status, inner, room);
    let lines = u16::try_from(pairs.len()).unwrap_or(u16::MAX);
    let [top, middle, up, down, foot] = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Length(room),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(inner);
    frame.render_widget(Paragraph::new(pairs), top);
    frame.render_widget(Paragraph::new(legs), middle);
    for (place, area, arrow, color) in [(0, up, "↑", Color::Cyan), (1, down, "↓", Color::Blue)]
    {
        rate(frame, app, area, place, arrow, color);
    }
    frame.render_widget(foot_line(&app.status), foot);
}

fn rate(frame: &mut Frame, app: &App, area: Rect, place: usize, arrow: &str, color: Color) {
    let last = app.rates.back().map_or(0.0, |rates| rates[place]);
    let label = format!(" {arrow} all {:>11} ", format::rate(last));
    let width = u16::try_from(label.chars().count()).unwrap_or(0);
    let [left, right] =
        Layout::horizontal([Constraint::Length(width), Constraint::Fill(1)]).areas(area);
    frame.render_widget(label, left);
    let room = usize::from(right.width);
    let skipped = app.rates.len().saturating_sub(room);
    let blank = room.saturating_sub(app.rates.len());
    let rates = app.rates.iter().skip(skipped);
    let values = std::iter::repeat_n(None, blank).chain(rates.map(|rates| Some(rates[place])));
    spark::plain(frame, right, color, values);
}

/// Gives a line for each pair.
fn pairs(status: &Status, area: Rect, legs: u16) -> Vec<Line<'static>> {
    if status.pairs.is_empty() {
        return vec![Line::styled(" no connections yet", faint())];
    }
    let mut pairs: Vec<_> = status.pairs.iter().collect();
    pairs.sort_by(|a, b| carried(b).total_cmp(&carried(a)));
    // What the legs, the sparklines and the last line leave.
    let room = usize::from(area.height.saturating_sub(3 + legs)).max(1);
    pairs.truncate(room.min(PAIRS));
    let names = pairs.iter().map(|pair| name(pair).chars().count()).max();
    let names = names.unwrap_or(0).min(usize::from(area.width) / 4);
    pairs
        .into_iter()
        .map(|pair| line(pair, names, usize::from(area.width)))
        .collect()
}

fn carried(pair: &PairSnapshot) -> f64 {
    pair.up.goodput + pair.down.goodput
}

fn name(pair: &PairSnapshot) -> String {
    format!("{} → {}", pair.client_campus, pair.server_campus)
}

fn line(pair: &PairSnapshot, names: usize, width: usize) -> Line<'static> {
    let figures = format!(
        " {:names$.names$}  {:>5} live  ",
        name(pair),
        format::count(pair.live)
    );
    let rates = [
        format!("↑ {:>11} ", format::rate(pair.up.goodput)),
        format!(" ↓ {:>11} ", format::rate(pair.down.goodput)),
    ];
    let used: usize =
        figures.chars().count() + rates.iter().map(|r| r.chars().count()).sum::<usize>();
    let bar = width.saturating_sub(used + 1) / 2;
    let [up, down] = rates;
    let mut line = Line::from(figures);
    line.push_span(Span::styled(up, Style::new().fg(Color::Cyan)));
    line.extend(phases::bar(
        lately(&pair.up.recent_phases, &pair.up.phases),
        bar,
    ));
    line.push_span(Span::styled(down, Style::new().fg(Color::Blue)));
    line.extend(phases::bar(
        lately(&pair.down.recent_phases, &pair.down.phases),
        bar,
    ));
    line
}

fn lately<'a>(recent: &'a PhaseSeconds, ever: &'a PhaseSeconds) -> &'a PhaseSeconds {
    if recent.total() > 0.0 { recent } else { ever }
}

/// Draws peers, links that are not there, and limits; such a link, a peer that is silent, and a limit
/// that is nearly used up, is red and comes first.
fn foot_line(daemon: &Status) -> Line<'static> {
    let peers = daemon.peers.iter().map(|peer| {
        let (silent, color) = match peer.liveness {
            Liveness::Answering => (false, Color::Green),
            Liveness::Silent => (true, Color::Red),
            Liveness::Unknown | Liveness::Unprobed => (false, Color::Reset),
        };
        let text = match peer.rtt {
            Some(rtt) if peer.liveness == Liveness::Answering => format::seconds(rtt),
            _ => labels::liveness(peer.liveness).to_owned(),
        };
        let text = format!(" {} {text} ", peer.name);
        (silent, Span::styled(text, Style::new().fg(color)))
    });
    let away = daemon.links.iter().filter(|it| it.state != LinkReport::Up);
    let links = away.map(|link| {
        let text = format!(" [leg.{}] {} ", link.leg, labels::link(link.state));
        (true, Span::styled(text, Style::new().fg(Color::Red)))
    });
    let limits = daemon.limits.iter().map(|limit| {
        let (used, most) = (
            labels::amount(limit, limit.used),
            labels::amount(limit, limit.limit),
        );
        let text = format!(" {} {used}/{most} ", limit.name);
        let style = if nearly(limit) {
            Style::new().fg(Color::Red)
        } else {
            faint()
        };
        (nearly(limit), Span::styled(text, style))
    });
    let mut spans: Vec<_> = peers.chain(links).chain(limits).collect();
    spans.sort_by_key(|(alarming, _)| !alarming);
    spans.into_iter().map(|(_, span)| span).collect()
}

/// Tells whether nine tenths of a limit are used.
fn nearly(limit: &LimitUse) -> bool {
    limit.limit > 0 && limit.used.saturating_mul(10) >= limit.limit.saturating_mul(9)
}
