//! Every congestion control on each leg: a row per sender's, a column per proxy's.

use anyhow::Result;
use plotters::prelude::*;

use super::number::number;
use super::svg::{FONT, SIZE, draw_error};
use crate::paper::{Experiment, Matrix};
use crate::results::{Metric, Outcome};
use crate::stats::Summary;

/// The colours of nothing and of the whole limit.
const COLOURS: [RGBColor; 2] = [RGBColor(255, 255, 255), RGBColor(0, 114, 178)];
/// Room for the names beside and above the cells, in pixels.
const NAMES: (i32, i32) = (110, 90);

/// The means of a matrix experiment.
pub struct Means {
    /// The congestion controls, in the order of rows and columns.
    pub controls: Vec<String>,
    metric: Metric,
    /// The physical limit, in the metric's unit in reports.
    pub limit: Option<f64>,
    /// Per sender: without a proxy, with HAProxy, and then with each of `controls` on pepd's far
    /// leg.
    pub rows: Vec<Vec<Option<f64>>>,
}

impl Means {
    /// Returns the means of `outcome`, in the unit of reports; `None` without results.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let metric = *outcome.metrics().first()?;
        let records = || outcome.records.iter().filter(|r| r.metric == metric);
        let alike = [Matrix::direct(""), Matrix::haproxy("")];
        let alike = alike
            .iter()
            .flat_map(|prefix| records().filter_map(move |r| r.variant.strip_prefix(prefix)));
        let to = records().filter_map(|r| Some(r.variant.split_once(" → ")?.1));
        let mut controls: Vec<_> = alike.chain(to).map(str::to_owned).collect();
        controls.sort_unstable();
        controls.dedup();
        let mean = |name: String| {
            let values = records().filter(|record| record.variant == name);
            let values: Vec<_> = values.map(|r| r.value / metric.scale()).collect();
            Summary::of(&values).map(|summary| summary.mean)
        };
        let row = |sender: &String| {
            let split = controls
                .iter()
                .map(|forward| Matrix::split(sender, forward));
            [Matrix::direct(sender), Matrix::haproxy(sender)]
                .into_iter()
                .chain(split)
                .map(mean)
                .collect()
        };
        let rows = controls.iter().map(row).collect();
        let limit = records().find_map(|record| record.limit);
        Some(Self {
            controls,
            metric,
            limit: limit.map(|limit| limit / metric.scale()),
            rows,
        })
    }

    /// Returns the table's header.
    #[must_use]
    pub fn header(&self) -> Vec<String> {
        let first = ["sender", "no proxy", "HAProxy"].map(str::to_owned);
        first.into_iter().chain(self.controls.clone()).collect()
    }

    /// Returns the table's rows, as texts.
    #[must_use]
    pub fn texts(&self) -> Vec<Vec<String>> {
        let show = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        let named = self.controls.iter().zip(&self.rows);
        named
            .map(|(name, row)| {
                std::iter::once(name.clone())
                    .chain(row.iter().map(show))
                    .collect()
            })
            .collect()
    }

    /// Says what the numbers are.
    #[must_use]
    pub fn remark(&self) -> String {
        let limit = self.limit.map(|limit| format!("; limit {}", number(limit)));
        format!(
            "{}{}; rows: the sender's congestion control, which HAProxy has too; columns: pepd's \
             towards the receiver",
            self.metric.label(),
            limit.unwrap_or_default()
        )
    }
}

/// Draws the figure: a cell per pair, the darker the closer to the limit.
///
/// # Errors
/// When a value cannot be drawn.
pub fn figure(experiment: &Experiment, means: &Means) -> Result<String> {
    let count = i32::try_from(means.controls.len())?;
    let height = u32::try_from(170 + 26 * count.max(4))?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let area = root
            .titled(&experiment.caption(), (FONT, 18))
            .map_err(draw_error)?;
        let (wide, high) = area.dim_in_pixel();
        let cell = (
            (i32::try_from(wide)? - NAMES.0 - 10) / (count + 2),
            (i32::try_from(high)? - NAMES.1 - 30) / count,
        );
        let text = |text: String, at: (i32, i32), size: i32| {
            let style = (FONT, size).into_font().color(&BLACK);
            area.draw(&Text::new(text, at, style)).map_err(draw_error)
        };
        text(
            "pepd towards the receiver".to_owned(),
            (NAMES.0 + 2 * cell.0 + 4, 8),
            14,
        )?;
        text("sender".to_owned(), (10, NAMES.1 - 20), 14)?;
        // Names above narrow columns are on two levels.
        let steps = if cell.0 < 70 { 2 } else { 1 };
        for (column, name) in means.header().iter().skip(1).enumerate() {
            let column = i32::try_from(column)?;
            let up = 20 * (1 + column % steps);
            text(
                name.clone(),
                (NAMES.0 + column * cell.0 + 4, NAMES.1 - up),
                13,
            )?;
        }
        for (line, (name, row)) in means.controls.iter().zip(&means.rows).enumerate() {
            let top = NAMES.1 + i32::try_from(line)? * cell.1;
            text(name.clone(), (10, top + cell.1 / 2 - 6), 13)?;
            for (column, value) in row.iter().enumerate() {
                let left = NAMES.0 + i32::try_from(column)? * cell.0;
                let corners = [(left, top), (left + cell.0 - 2, top + cell.1 - 2)];
                let share = value.unwrap_or(0.0) / means.limit.unwrap_or(1.0);
                let shade = Rectangle::new(corners, mixed(share).filled());
                area.draw(&shade).map_err(draw_error)?;
                let shown = value.map_or_else(|| "–".to_owned(), number);
                let ink = if share > 0.6 { &WHITE } else { &BLACK };
                let style = (FONT, 12).into_font().color(ink);
                let place = (left + 5, top + cell.1 / 2 - 6);
                area.draw(&Text::new(shown, place, style))
                    .map_err(draw_error)?;
            }
        }
        text(means.remark(), (10, i32::try_from(high)? - 22), 12)?;
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

fn mixed(share: f64) -> RGBColor {
    let share = share.clamp(0.0, 1.0);
    let mix = |low: u8, high: u8| {
        let value = f64::from(low) + share * (f64::from(high) - f64::from(low));
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between two bytes"
        )]
        let byte = value.round() as u8;
        byte
    };
    let [low, high] = COLOURS;
    RGBColor(mix(low.0, high.0), mix(low.1, high.1), mix(low.2, high.2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::example;

    #[test]
    fn each_pair_has_its_place() {
        let mut outcome = example()
            .experiments
            .remove("jain-ott-fig4")
            .expect("it is there");
        let mut record = outcome.records.remove(0);
        outcome.records.clear();
        for (name, value) in [
            (Matrix::direct("bbr"), 1e6),
            (Matrix::direct("reno"), 2e6),
            (Matrix::haproxy("reno"), 2.5e6),
            (Matrix::split("reno", "bbr"), 3e6),
        ] {
            record.variant = name;
            record.value = value;
            outcome.records.push(record.clone());
        }
        let means = Means::of(&outcome).expect("there are results");
        assert_eq!(
            means.header(),
            ["sender", "no proxy", "HAProxy", "bbr", "reno"]
        );
        assert_eq!(
            means.texts(),
            [
                ["bbr", "1.00", "–", "–", "–"],
                ["reno", "2.00", "2.50", "3.00", "–"]
            ]
        );

        // A run may be of HAProxy alone.
        record.variant = Matrix::haproxy("vegas");
        outcome.records = vec![record];
        let means = Means::of(&outcome).expect("there are results");
        assert_eq!(means.texts(), [["vegas", "–", "3.00", "–"]]);
    }
}
