//! What is computed: its figure, and its numbers.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use plotters::prelude::*;

use super::figure::{LABELS, LEGEND, Style, label, labels, legend};
use super::number::number;
use super::svg::{FONT, SIZE, draw_error};
use crate::paper::Computed;

/// Draws its lines.
///
/// # Errors
/// When a value cannot be drawn.
pub fn figure(computed: &Computed) -> Result<String> {
    let curves = computed.curves();
    let [across, up] = computed.axes();
    let places = curves.iter().flat_map(|curve| &curve.points);
    let (right, top) = places.fold((1.0, 1.0), |(x, y): (f64, f64), point| {
        (x.max(point.0), y.max(point.1))
    });
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let area = root
            .titled(&computed.caption(), (FONT, 18))
            .map_err(draw_error)?;
        let (area, beside) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, 0.0..top * 1.08)
            .map_err(draw_error)?;
        chart
            .configure_mesh()
            .x_desc(across)
            .y_desc(up)
            .x_labels(labels(false, 0.0, right))
            .y_labels(LABELS)
            .x_label_formatter(&|x| label(false, *x))
            .y_label_formatter(&|y| label(false, *y))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .light_line_style(WHITE)
            .draw()
            .map_err(draw_error)?;
        for (index, curve) in curves.iter().enumerate() {
            let style = Style(index);
            let line = LineSeries::new(curve.points.clone(), style.colour().stroke_width(2));
            chart.draw_series(line).map_err(draw_error)?;
            for place in &curve.points {
                style.mark(chart.plotting_area(), *place)?;
            }
        }
        let names: Vec<_> = curves.iter().map(|curve| curve.name.as_str()).collect();
        legend(&beside, &names, false, false)?;
        root.present().map_err(draw_error)?;
    }
    Ok(svg)
}

/// Renders its numbers: a row per place, a column per line.
#[must_use]
pub fn table(computed: &Computed) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let (header, rows) = cells(computed);
    table.set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}: {}\n{table}\n", computed.name, computed.caption());
    for line in remarks(computed) {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

/// Returns the header and the rows.
#[must_use]
pub fn cells(computed: &Computed) -> (Vec<String>, Vec<Vec<String>>) {
    let curves = computed.curves();
    let mut header = vec!["x".to_owned()];
    header.extend(curves.iter().map(|curve| curve.name.clone()));
    let mut places: Vec<f64> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.0))
        .collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let row = |x: f64| {
        let values = curves.iter().map(|curve| {
            let here = curve.points.iter().find(|point| point.0 == x);
            here.map_or(String::new(), |point| number(point.1))
        });
        std::iter::once(label(false, x)).chain(values).collect()
    };
    (header, places.into_iter().map(row).collect())
}

/// Returns everything that must be said beside the numbers.
#[must_use]
pub fn remarks(computed: &Computed) -> Vec<String> {
    let [across, up] = computed.axes();
    let mut lines = vec![
        format!("x: {across}; values: {up}"),
        format!(
            "computed for {} ACKs, an outage of {}, a smoothed round trip of {} and a deviation of {}",
            computed.acks,
            humantime::format_duration(computed.outage),
            humantime::format_duration(computed.mean),
            humantime::format_duration(computed.deviation),
        ),
    ];
    lines.extend(computed.notes.iter().cloned());
    lines
}
