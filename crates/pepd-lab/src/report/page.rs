//! One self-contained page with everything.

use std::fmt::Write as _;
use std::ops::Range;

use anyhow::Result;

use super::svg::Figure;
use super::{computed, table};
use crate::paper::{Experiment, Paper};
use crate::results::Results;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;font-size:14px;margin:1rem 0}\
td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}\
.w{text-align:left}\
svg{max-width:100%;height:auto}.remarks{font-size:14px;color:#555}h2{margin-top:3rem}";

/// Renders the page about `results`. `figures` draws those of an experiment.
///
/// # Errors
/// When a figure cannot be drawn.
pub fn page(
    papers: &[Paper],
    results: &Results,
    figures: &dyn Fn(&Experiment) -> Result<Vec<Figure>>,
) -> Result<String> {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>pepd-lab</title><style>{STYLE}</style>\n\
         <h1>The papers' experiments, repeated with pepd</h1>\n"
    );
    for paper in papers {
        let mut heading = Some(format!(
            "<h2>{}: <i>{}</i>{}</h2>\n",
            escape(&paper.authors),
            escape(&paper.title),
            paper
                .year
                .map(|year| format!(" ({year})"))
                .unwrap_or_default()
        ));
        for experiment in &paper.experiments {
            let Some(outcome) = results.experiments.get(&experiment.name) else {
                continue;
            };
            html.push_str(&heading.take().unwrap_or_default());
            let figures = figures(experiment)?.into_iter().map(|figure| figure.svg);
            let section = Section {
                name: &experiment.name,
                title: experiment.caption(),
                figures: figures.collect(),
                cells: table::cells(experiment, outcome),
                words: table::words(experiment),
                remarks: table::remarks(experiment, outcome),
            };
            section.write(&mut html)?;
        }
        for figure in &paper.computed {
            html.push_str(&heading.take().unwrap_or_default());
            let section = Section {
                name: &figure.name,
                title: figure.caption(),
                figures: vec![computed::figure(figure)?],
                cells: computed::cells(figure),
                words: 0..0,
                remarks: computed::remarks(figure),
            };
            section.write(&mut html)?;
        }
    }
    html.push_str("</html>\n");
    Ok(html)
}

/// What the page says about one experiment.
struct Section<'a> {
    name: &'a str,
    title: String,
    figures: Vec<String>,
    /// The header, and the rows.
    cells: (Vec<String>, Vec<Vec<String>>),
    /// The columns that have words, not numbers.
    words: Range<usize>,
    remarks: Vec<String>,
}

impl Section<'_> {
    fn write(self, html: &mut String) -> Result<()> {
        let Self { name, title, .. } = &self;
        let title = escape(title);
        writeln!(html, "<h3 id=\"{0}\">{0}: {title}</h3>", escape(name))?;
        for svg in &self.figures {
            html.push_str(svg);
        }
        let (header, rows) = &self.cells;
        let class = |column| {
            if self.words.contains(&column) {
                " class=\"w\""
            } else {
                ""
            }
        };
        html.push_str("<table><tr>");
        for (column, name) in header.iter().enumerate() {
            write!(html, "<th{}>{}</th>", class(column), escape(name))?;
        }
        for row in rows {
            html.push_str("</tr>\n<tr>");
            for (column, cell) in row.iter().enumerate() {
                write!(html, "<td{}>{}</td>", class(column), escape(cell))?;
            }
        }
        html.push_str("</tr></table>\n<ul class=\"remarks\">");
        for remark in &self.remarks {
            write!(html, "<li>{}</li>", escape(remark))?;
        }
        html.push_str("</ul>\n");
        Ok(())
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
