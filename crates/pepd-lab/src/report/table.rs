//! The table on the terminal, and its cells for the page.

use std::ops::Range;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::matrix::Means;
use super::number::number;
use crate::paper::{Experiment, Printed};
use crate::results::{Metric, Outcome, Record};
use crate::stats::Summary;

/// What stands over the columns; the first is the experiment's axis.
const HEADER: [&str; 10] = [
    "x",
    "variant",
    "metric",
    "mean",
    "± 95 %",
    "n",
    "limit",
    "share",
    "paper",
    "difference",
];
/// The columns without those about the paper, where it printed no such value.
const OURS: usize = 8;

/// Renders the outcome of an experiment: a row per point, variant and metric.
#[must_use]
pub fn table(experiment: &Experiment, outcome: &Outcome) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let (header, rows) = cells(experiment, outcome);
    let words = words(experiment);
    table.set_header(header);
    for row in rows {
        let cells = row.into_iter().enumerate().map(|(column, text)| {
            let words = words.contains(&column);
            let side = if words {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            };
            Cell::new(text).set_alignment(side)
        });
        table.add_row(cells.collect::<Vec<_>>());
    }
    let mut text = format!(
        "{}: {} ({})\n{table}\n",
        experiment.name, experiment.title, experiment.source
    );
    for line in remarks(experiment, outcome) {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

/// Returns which columns have words, not numbers.
#[must_use]
pub fn words(experiment: &Experiment) -> Range<usize> {
    if experiment.matrix.is_some() {
        0..1
    } else {
        1..3
    }
}

/// Returns the header and the rows: of a matrix its cells, and otherwise a row per point, variant
/// and metric.
#[must_use]
pub fn cells(experiment: &Experiment, outcome: &Outcome) -> (Vec<String>, Vec<Vec<String>>) {
    let means = Means::of(outcome).filter(|_| experiment.matrix.is_some());
    if let Some(means) = means {
        return (means.header(), means.texts());
    }
    let printed = outcome.records.iter().any(|record| record.paper.is_some());
    let columns = if printed { HEADER.len() } else { OURS };
    let rows = rows(experiment, outcome).into_iter();
    let header = HEADER.map(str::to_owned)[..columns].to_vec();
    (header, rows.map(|row| row[..columns].to_vec()).collect())
}

/// Returns the cells of [`HEADER`]'s columns.
fn rows(experiment: &Experiment, outcome: &Outcome) -> Vec<[String; 10]> {
    let mut rows = Vec::new();
    for point in &experiment.points {
        for variant in &experiment.variants {
            for metric in outcome.metrics() {
                let records = outcome.select(point.x, &variant.name, metric);
                if let Some(values) = row(&records, metric) {
                    let x = point.name.clone();
                    let x = x.unwrap_or_else(|| format!("{}{}", point.x, experiment.axis.unit));
                    let (name, metric) = (variant.name.clone(), metric.label().to_owned());
                    let [mean, half, count, limit, share, paper, difference] = values;
                    rows.push([
                        x, name, metric, mean, half, count, limit, share, paper, difference,
                    ]);
                }
            }
        }
    }
    rows
}

/// Returns everything that must be said beside the numbers.
#[must_use]
pub fn remarks(experiment: &Experiment, outcome: &Outcome) -> Vec<String> {
    let setting = &outcome.setting;
    let clock = if setting.virtual_time {
        "virtual time"
    } else {
        "REAL TIME: the machine's noise is in it"
    };
    let form = if setting.quick { ", quick form" } else { "" };
    let mut lines = vec![
        format!("x: {}", experiment.axis.with_unit()),
        format!("Linux {}, {clock}{form}", setting.kernel),
    ];
    if let Some(means) = Means::of(outcome).filter(|_| experiment.matrix.is_some()) {
        lines[0] = means.remark();
    }
    for printed in &experiment.printed {
        if printed.x.is_none() || printed.over.is_some() {
            lines.push(format!(
                "paper: {} {} — {} ({}){}",
                printed.value,
                printed.unit,
                printed.what,
                printed.source,
                ratio(printed, outcome).unwrap_or_default()
            ));
        }
    }
    lines.extend(experiment.notes.iter().cloned());
    lines.extend(
        outcome
            .left_out
            .iter()
            .map(|what| format!("left out: {what}")),
    );
    lines.extend(disturbances(outcome));
    lines
}

/// Returns what speaks against trusting the numbers: time that was lost, links that fell behind.
fn disturbances(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    let late: Vec<f64> = outcome
        .records
        .iter()
        .filter(|record| record.fell_behind)
        .map(|record| record.link_lag)
        .collect();
    let waited = outcome
        .records
        .iter()
        .filter(|r| r.host_requests.is_some_and(|n| n > 0))
        .count();
    if outcome.setting.virtual_time && waited > 0 {
        lines.push(format!(
            "in {waited} of {} values the guest waited for the host's files: time was lost",
            outcome.records.len()
        ));
    }
    if !late.is_empty() {
        let most = late.iter().fold(0.0, |most: f64, lag| most.max(*lag));
        lines.push(format!(
            "in {} of {} values an emulated link fell behind, with one packet in a hundred by {} ms \
             or more: trust them accordingly",
            late.len(),
            outcome.records.len(),
            number(1e3 * most)
        ));
    }
    lines
}

/// Returns what a ratio that the paper printed is here: the mean over the points that it is about.
fn ratio(printed: &Printed, outcome: &Outcome) -> Option<String> {
    let (variant, over) = (printed.variant.as_ref()?, printed.over.as_ref()?);
    let metric = *outcome.metrics().first()?;
    let mut xs: Vec<f64> = outcome.records.iter().map(|record| record.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let at = |x: f64, name: &String| {
        let wanted = |r: &&Record| r.x == x && r.variant == *name && r.metric == metric;
        let values: Vec<f64> = outcome
            .records
            .iter()
            .filter(wanted)
            .map(|r| r.value)
            .collect();
        Summary::of(&values).map(|summary| summary.mean)
    };
    let wanted = xs
        .into_iter()
        .filter(|x| printed.x.is_none_or(|only| only == *x));
    let ratios: Vec<f64> = wanted
        .filter_map(|x| Some(at(x, variant)? / at(x, over)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    let mean = Summary::of(&ratios)?.mean;
    let shown = match printed.unit.as_str() {
        "%" => 100.0 * mean,
        "% more" => 100.0 * (mean - 1.0),
        _ => mean,
    };
    Some(format!(
        "; here {} {}: {variant} over {over}",
        number(shown),
        printed.unit
    ))
}

fn row(records: &[&Record], metric: Metric) -> Option<[String; 7]> {
    let first = records.first()?;
    let values: Vec<f64> = records.iter().map(|record| record.value).collect();
    let summary = Summary::of(&values)?;
    let show = |value: f64| number(value / metric.scale());
    let nothing = || "–".to_owned();
    Some([
        show(summary.mean),
        summary.half_width.map_or_else(nothing, show),
        summary.count.to_string(),
        first.limit.map_or_else(nothing, show),
        first
            .limit
            .filter(|_| metric.more_is_better())
            .map_or_else(nothing, |limit| {
                format!("{:.1} %", 100.0 * summary.mean / limit)
            }),
        first
            .paper
            .as_ref()
            .map_or_else(nothing, |paper| show(paper.value)),
        first.paper.as_ref().map_or_else(nothing, |paper| {
            format!("{:+.0} %", 100.0 * (summary.mean / paper.value - 1.0))
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper;
    use crate::results::tests::example;

    #[test]
    fn the_table_is_readable() {
        let papers = paper::all().unwrap();
        let mut all = papers.iter().flat_map(|paper| &paper.experiments);
        let experiment = all
            .find(|experiment| experiment.name == "jain-ott-fig4")
            .unwrap();
        let results = example();
        insta::assert_snapshot!(table(experiment, &results.experiments["jain-ott-fig4"]));
    }
}
