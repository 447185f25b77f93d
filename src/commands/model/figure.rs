//! What the models answer, drawn as SVG.

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::exit::{Failure, Result};
use crate::ui::format;

/// Width and height of a chart, pixels.
const SIZE: (u32, u32) = (760, 340);
/// The font of all texts.
const FONT: &str = "sans-serif";
/// Colours that also differ for those who see fewer of them (Okabe, Ito, 2008).
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
/// What is asked about, on a curve.
const HERE: RGBColor = RGBColor(120, 120, 120);

/// Throughputs over something.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it says.
    pub title: String,
    /// What it is over.
    pub over: &'static str,
    /// How a place on that axis is written.
    pub place: fn(f64) -> String,
    /// Whether the axis has equal ratios at equal distances, or whole steps.
    pub is_log: bool,
    /// Lines with their names: places, and rates in bit/s.
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
    /// What a point of the first line is called.
    pub names: Vec<String>,
    /// The place that is asked about.
    pub here: Option<f64>,
}

/// Draws charts, one below the other.
pub fn draw(charts: &[Chart]) -> Result<String> {
    let mut svg = String::new();
    {
        let count = u32::try_from(charts.len()).unwrap_or(1).max(1);
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, SIZE.1 * count)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let panels = root.split_evenly((charts.len().max(1), 1));
        for (chart, panel) in charts.iter().zip(&panels) {
            let (from, to) = chart.range();
            if chart.is_log {
                chart.draw(panel, (from..to).log_scale())?;
            } else {
                chart.draw(panel, from - 0.25..to + 0.25)?;
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::internal("draw a figure", error)
}

type Panel<'b> = DrawingArea<SVGBackend<'b>, plotters::coord::Shift>;

impl Chart {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.lines.iter().flat_map(|line| &line.1)
    }

    /// Returns the upper corner that the first line is farther from.
    fn free_corner(&self) -> SeriesLabelPosition {
        let line = self.lines.first().map_or(&[][..], |line| &line.1);
        match (line.first(), line.last()) {
            (Some(first), Some(last)) if first.1 < last.1 => SeriesLabelPosition::UpperLeft,
            _ => SeriesLabelPosition::UpperRight,
        }
    }

    fn range(&self) -> (f64, f64) {
        let places = || self.points().map(|point| point.0);
        let from = places().fold(f64::INFINITY, f64::min);
        (from, places().fold(from, f64::max))
    }

    fn draw<X>(&self, panel: &Panel<'_>, across: X) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let top = self.points().map(|point| point.1).fold(1.0, f64::max) * 1.15;
        let mut chart = ChartBuilder::on(panel)
            .caption(&self.title, (FONT, 16))
            .margin(10)
            .margin_right(30)
            .x_label_area_size(42)
            .y_label_area_size(92)
            .build_cartesian_2d(across, 0.0..top)
            .map_err(failed)?;
        let steps = if self.is_log { 8 } else { self.names.len() };
        chart
            .configure_mesh()
            .x_desc(self.over)
            .x_labels(steps)
            .y_labels(6)
            .x_label_formatter(&|place| (self.place)(*place))
            .y_label_formatter(&|rate| format::rate(*rate))
            .label_style((FONT, 12))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        if let Some(here) = self.here {
            let line = LineSeries::new([(here, 0.0), (here, top)], HERE);
            chart.draw_series(line).map_err(failed)?;
        }
        for ((name, points), colour) in self.lines.iter().zip(COLOURS) {
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(line.point_size(3)).map_err(failed)?;
            drawn.label(*name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
            });
        }
        let first = self.lines.first().map_or(&[][..], |line| &line.1);
        // Towards the middle, where there is room.
        let (from, to) = self.range();
        let names = self.names.iter().zip(first).map(|(name, point)| {
            let (side, away) = match point.0 > f64::midpoint(from, to) {
                true => (HPos::Right, -6),
                false => (HPos::Left, 6),
            };
            let style = TextStyle::from((FONT, 12)).pos(Pos::new(side, VPos::Top));
            EmptyElement::at(*point) + Text::new(name.clone(), (away, -16), style)
        });
        chart.draw_series(names).map_err(failed)?;
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(self.free_corner())
                .label_font((FONT, 12))
                .background_style(WHITE)
                .draw()
                .map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_texts_and_what_users_wrote_is_no_markup() {
        let chart = Chart {
            title: "Throughput".to_owned(),
            over: "boxes",
            place: |place| format!("{place:.0}"),
            is_log: false,
            lines: vec![("split", vec![(0.0, 1e6), (1.0, 5e6)])],
            names: vec!["no box".to_owned(), "<b>&".to_owned()],
            here: None,
        };
        let svg = draw(&[chart]).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
        // The last one ends where its point is: behind that there is no room.
        let (before, _) = svg.split_once("&lt;b").unwrap();
        let (_, last) = before.rsplit_once("<text").unwrap();
        assert!(last.contains("text-anchor=\"end\""), "{last}");
        assert!(
            svg.contains("no box") && svg.contains("&lt;b&gt;&amp;"),
            "{svg}"
        );
    }
}
