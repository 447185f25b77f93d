//! Figures of a metric over the axis, and of a trace over time.

use anyhow::Result;
use plotters::coord::CoordTranslate;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::svg::{FONT, SIZE, draw_error};
use crate::paper::Experiment;
use crate::results::{Metric, Outcome, Trace};
use crate::stats::Summary;

/// The width of the legend, in pixels.
pub(super) const LEGEND: u32 = 220;
/// The height of a trace's panel, in pixels, the title's share with it.
const PANEL: u32 = 214;
/// The most labels that an axis may have.
pub(super) const LABELS: usize = 11;
/// Colours that also differ for those who see fewer of them (Okabe, Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const LIMIT: RGBColor = RGBColor(120, 120, 120);

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

pub(super) type Area<'b> = DrawingArea<SVGBackend<'b>, plotters::coord::Shift>;

/// Picks what a panel shows of a sample.
type Series = fn(&crate::results::Sample) -> f64;

/// A line of a figure: places with, where there are repeats, the interval's half width.
struct Line {
    name: String,
    points: Vec<(f64, Summary)>,
}

/// Draws one metric of an experiment over its axis.
///
/// # Errors
/// When a value cannot be drawn.
pub fn over_axis(experiment: &Experiment, outcome: &Outcome, metric: Metric) -> Result<String> {
    let lines = lines(experiment, outcome, metric);
    let limits = limits(experiment, outcome, metric);
    let printed = printed(outcome, metric);
    let tops = lines.iter().flat_map(|line| &line.points);
    let tops = tops.map(|(_, summary)| summary.mean + summary.half_width.unwrap_or(0.0));
    let others = limits.iter().chain(&printed).map(|point| point.1);
    let scale = Scale::new(experiment, tops.chain(others).fold(0.0, f64::max), &lines);

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let area = root
            .titled(&experiment.caption(), (FONT, 18))
            .map_err(draw_error)?;
        // The legend beside the chart: inside it would cover a line sooner or later.
        let (area, beside) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = axes(&area, experiment, metric, &scale)?;
        for (index, line) in lines.iter().enumerate() {
            draw(&mut chart, line, Style(index), &scale)?;
        }
        dashed(&mut chart, &limits, &scale)?;
        crosses(&mut chart, &printed, &scale)?;
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        legend(&beside, &names, !limits.is_empty(), !printed.is_empty())?;
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

/// Draws both legs' congestion windows and the proxy's buffer over time, as in Baccelli et al.,
/// Fig. 19.2 to 19.5; of a connection that is not split, what there is.
///
/// # Errors
/// When a value cannot be drawn.
pub fn over_time(experiment: &Experiment, trace: &Trace) -> Result<String> {
    let series: [(&str, Series); 3] = [
        ("congestion window of TCP1", |sample| sample.near_cwnd),
        ("congestion window of TCP2", |sample| sample.far_cwnd),
        ("in the proxy's buffer", |sample| sample.buffer),
    ];
    let is_split = trace.samples.iter().any(|sample| sample.far_cwnd > 0.0);
    let series = if is_split { &series[..] } else { &series[..1] };
    let end = trace.samples.last().map_or(1.0, |sample| sample.time);
    let title = format!("{}: {}", experiment.caption(), trace.variant);
    let mut svg = String::new();
    {
        let size = (SIZE.0, PANEL * u32::try_from(series.len())?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(draw_error)?;
        let area = area.titled(&title, (FONT, 18)).map_err(draw_error)?;
        let panels = area.split_evenly((series.len(), 1));
        for ((panel, (name, value)), colour) in panels.iter().zip(series).zip(COLOURS) {
            let points: Vec<_> = trace.samples.iter().map(|s| (s.time, value(s))).collect();
            let highest = points.iter().map(|point| point.1).fold(1.0, f64::max);
            let mut chart = ChartBuilder::on(panel)
                .caption(name, (FONT, 14))
                .margin(6)
                .margin_right(20)
                .x_label_area_size(40)
                .y_label_area_size(60)
                .build_cartesian_2d(0.0..end, 0.0..highest * 1.1)
                .map_err(draw_error)?;
            chart
                .configure_mesh()
                .x_desc("time, s")
                .y_desc("packets")
                .y_labels(5)
                .x_label_formatter(&|x| label(false, *x))
                .y_label_formatter(&|y| label(false, *y))
                .label_style((FONT, 13))
                .light_line_style(WHITE)
                .draw()
                .map_err(draw_error)?;
            chart
                .draw_series(LineSeries::new(points, colour))
                .map_err(draw_error)?;
        }
        area.present().map_err(draw_error)?;
    }
    Ok(svg)
}

fn axes<'a, 'b>(
    area: &'a Area<'b>,
    experiment: &Experiment,
    metric: Metric,
    scale: &Scale,
) -> Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(scale.left..scale.right, scale.low..scale.high)
        .map_err(draw_error)?;
    chart
        .configure_mesh()
        .x_desc(experiment.axis.with_unit())
        .y_desc(metric.label())
        .x_labels(scale.x_labels())
        .y_labels(scale.y_labels())
        .x_label_formatter(&|x| label(scale.log_x, *x))
        .y_label_formatter(&|y| label(scale.log_y, *y))
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .light_line_style(WHITE)
        .draw()
        .map_err(draw_error)?;
    Ok(chart)
}

/// Maps values to places in the chart.
struct Scale {
    log_x: bool,
    log_y: bool,
    left: f64,
    right: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn new(experiment: &Experiment, highest: f64, lines: &[Line]) -> Self {
        let axis = &experiment.axis;
        let means = lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|(_, summary)| summary.mean);
        let lowest = means.filter(|mean| *mean > 0.0).fold(f64::MAX, f64::min);
        let (low, high) = if axis.log_result && lowest < f64::MAX {
            (lowest.log10().floor(), highest.log10().ceil())
        } else {
            (0.0, if highest > 0.0 { highest * 1.08 } else { 1.0 })
        };
        let place = |x: f64| if axis.log { x.log10() } else { x };
        let xs = experiment.points.iter().map(|point| place(point.x));
        let (left, right) = xs.fold((f64::MAX, f64::MIN), |(l, r), x| (l.min(x), r.max(x)));
        let margin = if left == right {
            1.0
        } else {
            (right - left) * 0.04
        };
        Self {
            log_x: axis.log,
            log_y: axis.log_result,
            left: left - margin,
            right: right + margin,
            low,
            high,
        }
    }

    fn x_labels(&self) -> usize {
        labels(self.log_x, self.left, self.right)
    }

    fn y_labels(&self) -> usize {
        if self.log_y {
            labels(true, self.low, self.high)
        } else {
            LABELS
        }
    }

    fn x(&self, x: f64) -> f64 {
        if self.log_x { x.log10() } else { x }
    }

    /// Moves what lies below the range, as nothing at all does on a logarithmic one, to its edge.
    fn y(&self, y: f64) -> f64 {
        let y = if self.log_y { y.log10() } else { y };
        if y.is_finite() {
            y.max(self.low)
        } else {
            self.low
        }
    }
}

/// Returns how many labels an axis may have: no more than one for each whole number, since places
/// on an axis are whole ones, and between decades a grid line would have no label.
pub(super) fn labels(log: bool, low: f64, high: f64) -> usize {
    let whole = (1_u8..=u8::MAX).take_while(|n| low.ceil() + f64::from(*n) <= high);
    let count = whole.count() + 1;
    if log { count } else { count.clamp(2, LABELS) }
}

pub(super) fn label(log: bool, place: f64) -> String {
    if !log {
        let text = format!("{place:.2}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    if (place - place.round()).abs() > 1e-6 {
        return String::new();
    }
    format!("{}", 10_f64.powf(place.round()))
}

fn lines(experiment: &Experiment, outcome: &Outcome, metric: Metric) -> Vec<Line> {
    let line = |name: &String| Line {
        name: name.clone(),
        points: experiment
            .points
            .iter()
            .filter_map(|point| {
                let records = outcome.select(point.x, name, metric);
                let values: Vec<_> = records.iter().map(|r| r.value / metric.scale()).collect();
                Some((point.x, Summary::of(&values)?))
            })
            .collect(),
    };
    let lines = experiment
        .variants
        .iter()
        .map(|variant| line(&variant.name));
    lines.filter(|line| !line.points.is_empty()).collect()
}

fn limits(experiment: &Experiment, outcome: &Outcome, metric: Metric) -> Vec<(f64, f64)> {
    let limit = |x: f64| {
        let mut here = outcome
            .records
            .iter()
            .filter(|r| r.x == x && r.metric == metric);
        Some((x, here.find_map(|record| record.limit)? / metric.scale()))
    };
    experiment
        .points
        .iter()
        .filter_map(|point| limit(point.x))
        .collect()
}

fn printed(outcome: &Outcome, metric: Metric) -> Vec<(f64, f64)> {
    let here = outcome
        .records
        .iter()
        .filter(|record| record.metric == metric);
    let mut points: Vec<_> = here
        .filter_map(|record| Some((record.x, record.paper.as_ref()?.value / metric.scale())))
        .collect();
    points.sort_by(|left, right| left.0.total_cmp(&right.0));
    points.dedup();
    points
}

fn draw(chart: &mut Chart<'_, '_>, line: &Line, style: Style, scale: &Scale) -> Result<()> {
    let colour = style.colour();
    let places: Vec<_> = line
        .points
        .iter()
        .map(|(x, s)| (scale.x(*x), scale.y(s.mean)))
        .collect();
    chart
        .draw_series(LineSeries::new(places.clone(), colour.stroke_width(2)))
        .map_err(draw_error)?;
    for place in places {
        style.mark(chart.plotting_area(), place)?;
    }
    let bars = line.points.iter().filter_map(|(x, summary)| {
        let half = summary.half_width?;
        let ends = [summary.mean - half, summary.mean + half];
        Some(PathElement::new(
            ends.map(|y| (scale.x(*x), scale.y(y))),
            colour,
        ))
    });
    chart.draw_series(bars).map_err(draw_error)?;
    Ok(())
}

fn dashed(chart: &mut Chart<'_, '_>, points: &[(f64, f64)], scale: &Scale) -> Result<()> {
    if points.is_empty() {
        return Ok(());
    }
    let mut places: Vec<_> = points
        .iter()
        .map(|(x, y)| (scale.x(*x), scale.y(*y)))
        .collect();
    // A line through one place would have no length.
    if let [(_, limit)] = places[..] {
        places = vec![(scale.left, limit), (scale.right, limit)];
    }
    chart
        .draw_series(DashedLineSeries::new(places, 6, 4, LIMIT.stroke_width(1)))
        .map_err(draw_error)?;
    Ok(())
}

fn crosses(chart: &mut Chart<'_, '_>, points: &[(f64, f64)], scale: &Scale) -> Result<()> {
    if points.is_empty() {
        return Ok(());
    }
    let places = points.iter().map(|(x, y)| (scale.x(*x), scale.y(*y)));
    chart
        .draw_series(places.map(|place| Cross::new(place, 5, BLACK.stroke_width(2))))
        .map_err(draw_error)?;
    Ok(())
}

pub(super) fn legend(area: &Area<'_>, names: &[&str], limit: bool, paper: bool) -> Result<()> {
    let dash = |from: i32, to: i32, y: i32, style: ShapeStyle| {
        area.draw(&PathElement::new([(from, y), (to, y)], style))
    };
    let text = |text: &str, y: i32| {
        let text = Text::new(text.to_owned(), (34, y - 7), (FONT, 14));
        area.draw(&text)
    };
    let mut places = (40..).step_by(24);
    for ((index, name), y) in names.iter().enumerate().zip(places.by_ref()) {
        let style = Style(index);
        dash(4, 26, y, style.colour().stroke_width(2)).map_err(draw_error)?;
        style.mark(area, (15, y))?;
        text(name, y).map_err(draw_error)?;
    }
    if let Some(y) = limit.then(|| places.next()).flatten() {
        for from in [4, 12, 20] {
            dash(from, from + 5, y, LIMIT.stroke_width(1)).map_err(draw_error)?;
        }
        text("limit", y).map_err(draw_error)?;
    }
    if let Some(y) = paper.then(|| places.next()).flatten() {
        let cross = Cross::new((15, y), 5, BLACK.stroke_width(2));
        area.draw(&cross).map_err(draw_error)?;
        text("the paper", y).map_err(draw_error)?;
    }
    Ok(())
}

/// The style of the n-th line: a colour, and once these are used up another mark.
#[derive(Clone, Copy)]
pub(super) struct Style(pub(super) usize);

impl Style {
    pub(super) fn colour(self) -> RGBColor {
        COLOURS[self.0 % COLOURS.len()]
    }

    pub(super) fn mark<'b, C: CoordTranslate>(
        self,
        area: &DrawingArea<SVGBackend<'b>, C>,
        place: C::From,
    ) -> Result<()>
    where
        C::From: Clone + 'static,
    {
        let colour = self.colour();
        match self.0 / COLOURS.len() {
            0 => area.draw(&Circle::new(place, 4, colour.filled())),
            1 => area.draw(&Circle::new(place, 4, colour.stroke_width(2))),
            _ => area.draw(&TriangleMarker::new(place, 6, colour.filled())),
        }
        .map_err(draw_error)
    }
}

#[cfg(test)]
mod tests {
    use super::labels;

    #[test]
    fn an_axis_has_labels_at_whole_places_only() {
        // One point and its edges, two points, a decade, three decades.
        assert_eq!(labels(false, 4.0, 6.0), 3);
        assert_eq!(labels(false, 0.96, 2.04), 2);
        assert_eq!(labels(true, 1.0, 2.0), 2);
        assert_eq!(labels(true, -1.0, 2.0), 4);
        // Margins beyond the outermost points, and more places than there is room for.
        assert_eq!(labels(true, -0.12, 3.12), 4);
        assert_eq!(labels(false, 0.0, 9000.0), 11);
    }
}
