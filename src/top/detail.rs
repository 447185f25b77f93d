//! One connection: its legs and directions over the last minutes.

use pepd_admin::wire::{
    DirectionPoint, DirectionSnapshot, FlowHistory, FlowSnapshot, HistoryPoint, LegPoint,
    LegSnapshot, LinkReport,
};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::app::{App, OpenFlow};
use super::style::faint;
use super::{phases, spark};
use crate::ui::format;
use crate::ui::labels;

/// Draws the connection that is open.
pub fn draw(frame: &mut Frame, app: &App, area: Rect) {
    let Some(open) = &app.open else { return };
    let Some((flow, history)) = &open.figures else {
        let text = if open.ended {
            format!(" connection {} has ended", open.id)
        } else {
            format!(" connection {} …", open.id)
        };
        frame.render_widget(text, area);
        return;
    };
    let [title, legs, directions] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Fill(9),
        Constraint::Fill(10),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(flow, open)), title);
    let sides = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]);
    let [left, right] = sides.areas(legs);
    leg(frame, flow, history, left, LegPane::CLIENT);
    leg(frame, flow, history, right, LegPane::UPSTREAM);
    let [left, right] = sides.areas(directions);
    direction(frame, flow, history, left, DirectionPane::UP);
    direction(frame, flow, history, right, DirectionPane::DOWN);
}

fn heading(flow: &FlowSnapshot, open: &OpenFlow) -> Vec<Line<'static>> {
    let mut first = Line::styled(
        format!(" {}  {} → {}", flow.id, flow.client, flow.server),
        Modifier::BOLD,
    );
    if open.ended {
        first.push_span(Span::styled("  HAS ENDED", Style::new().fg(Color::Red)));
    }
    let mut second = format!(
        " {} → {}, open for {}",
        flow.client_campus,
        flow.server_campus,
        format::age(flow.age)
    );
    if let Some(time) = flow.first_byte {
        second += &format!(", first byte after {}", format::seconds(time));
    }
    vec![first, Line::styled(second, faint())]
}

/// The contents of a pane about one leg.
struct LegPane {
    name: &'static str,
    of: fn(&FlowSnapshot) -> &LegSnapshot,
    point: fn(&HistoryPoint) -> &LegPoint,
}

impl LegPane {
    const CLIENT: Self = Self {
        name: "client leg",
        of: |flow| &flow.client_leg,
        point: |point| &point.client_leg,
    };
    const UPSTREAM: Self = Self {
        name: "upstream leg",
        of: |flow| &flow.upstream_leg,
        point: |point| &point.upstream_leg,
    };
}

fn leg(frame: &mut Frame, flow: &FlowSnapshot, history: &FlowHistory, area: Rect, which: LegPane) {
    let leg = (which.of)(flow);
    let title = format!(
        " {}: [leg.{}] {} ",
        which.name,
        leg.profile,
        leg.congestion.as_deref().unwrap_or("")
    );
    let mut block = Block::bordered().title(title);
    if leg.link != LinkReport::Up {
        let link = format!(" link {} ", labels::link(leg.link));
        block = block.title(Line::styled(link, Style::new().fg(Color::Red)).right_aligned());
    }
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let figures = leg_figures(leg);
    let lines = u16::try_from(figures.len()).unwrap_or(0);
    let [text, rtt, cwnd, retransmitted] = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(inner);
    frame.render_widget(Paragraph::new(figures), text);
    let slots = slots(flow, history, inner);
    let points = || slots.iter().map(|slot| slot.map(which.point));
    let rtts = points().map(|point| Some(point?.rtt));
    spark::draw(frame, rtt, " RTT", Color::Magenta, rtts);
    let windows = points().map(|point| Some(f64::from(point?.cwnd)));
    spark::draw(frame, cwnd, " cwnd", Color::Cyan, windows);
    let again = points().map(|point| {
        let segments = point?.retransmitted_segments;
        (segments > 0).then(|| f64::from(segments))
    });
    spark::draw(frame, retransmitted, " retr.", Color::Red, again);
}

fn leg_figures(leg: &LegSnapshot) -> Vec<Line<'static>> {
    let Some(tcp) = &leg.tcp else {
        return vec![Line::styled(" closed", faint()), Line::default()];
    };
    let share = tcp.sent_bytes.filter(|sent| *sent > 0).and_then(|sent| {
        let again = tcp.retransmitted_bytes?;
        Some(format::number(again) / format::number(sent))
    });
    let least = tcp.min_rtt.map_or_else(String::new, |least| {
        format!(" (least {})", format::seconds(least))
    });
    vec![
        match leg.link {
            // Nothing measures one meanwhile.
            LinkReport::Gone => Line::from(format!(" RTT –{least}")),
            LinkReport::Up | LinkReport::GoingDown => {
                Line::from(format!(" RTT {}{least}", format::seconds(tcp.rtt)))
            }
        },
        Line::from(format!(
            " cwnd {} × {} B, retr. {}{}",
            tcp.cwnd,
            tcp.mss,
            labels::retransmitted(leg),
            share.map_or_else(String::new, |share| format!(
                " ({})",
                format::permille(share)
            ))
        )),
    ]
}

/// The contents of a pane about one direction.
struct DirectionPane {
    name: &'static str,
    color: Color,
    of: fn(&FlowSnapshot) -> &DirectionSnapshot,
    point: fn(&HistoryPoint) -> &DirectionPoint,
}

impl DirectionPane {
    const UP: Self = Self {
        name: "↑ client → server",
        color: Color::Cyan,
        of: |flow| &flow.up,
        point: |point| &point.up,
    };
    const DOWN: Self = Self {
        name: "↓ server → client",
        color: Color::Blue,
        of: |flow| &flow.down,
        point: |point| &point.down,
    };
}

fn direction(
    frame: &mut Frame,
    flow: &FlowSnapshot,
    history: &FlowHistory,
    area: Rect,
    pane: DirectionPane,
) {
    let direction = (pane.of)(flow);
    let block = Block::bordered().title(format!(" {} ", pane.name));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [text, rate, queue, band, share, legend] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(inner);
    frame.render_widget(Paragraph::new(direction_figures(direction)), text);
    let slots = slots(flow, history, inner);
    let points = || slots.iter().map(|slot| slot.map(pane.point));
    let rates = points().map(|point| Some(point?.goodput));
    spark::draw(frame, rate, " goodput", pane.color, rates);
    #[allow(clippy::cast_precision_loss, reason = "a queue's bytes, to be drawn")]
    let queues = points().map(|point| Some(point?.queue as f64));
    spark::draw(frame, queue, " queue", Color::Magenta, queues);
    let times = points().map(|point| point.map(|point| &point.phases));
    labelled(frame, band, " phase", phases::band(times));
    let width = usize::from(inner.width.saturating_sub(spark::LABEL));
    labelled(
        frame,
        share,
        " in all",
        phases::bar(&direction.carrying(), width),
    );
    frame.render_widget(phases::legend().right_aligned(), legend);
}

fn labelled(frame: &mut Frame, area: Rect, label: &str, line: Line) {
    let sides = Layout::horizontal([Constraint::Length(spark::LABEL), Constraint::Fill(1)]);
    let [left, right] = sides.areas(area);
    frame.render_widget(label, left);
    frame.render_widget(line, right);
}

fn direction_figures(direction: &DirectionSnapshot) -> Vec<Line<'static>> {
    let phase = direction.phase.map_or("ended", labels::phase_name);
    vec![
        Line::from(format!(
            " {}, {}, now {phase}",
            format::rate(direction.goodput.last_second),
            format::bytes(direction.bytes),
        )),
        Line::from(format!(
            " queue {}, at most {}",
            format::bytes(direction.queue.total()),
            format::bytes(direction.queue_max)
        )),
    ]
}

/// Gives the seconds that there is room for.
fn slots<'a>(
    flow: &FlowSnapshot,
    history: &'a FlowHistory,
    inner: Rect,
) -> Vec<Option<&'a HistoryPoint>> {
    let width = inner.width.saturating_sub(spark::LABEL);
    spark::slots(history, flow.started + flow.age, width)
}
