//! One self-contained page with everything.

use std::fmt::Write as _;

use anyhow::Result;

use super::svg::Figure;
use super::table::{cells, remarks, words};
use crate::paper::{Experiment, Paper};
use crate::results::{Outcome, Results};

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
            section(&mut html, experiment, outcome, &figures(experiment)?)?;
        }
    }
    html.push_str("</html>\n");
    Ok(html)
}

/// Appends what the page says about one experiment: its figures, its table and the remarks.
fn section(
    html: &mut String,
    experiment: &Experiment,
    outcome: &Outcome,
    figures: &[Figure],
) -> Result<()> {
    let title = escape(&experiment.caption());
    writeln!(
        html,
        "<h3 id=\"{0}\">{0}: {title}</h3>",
        escape(&experiment.name)
    )?;
    for figure in figures {
        html.push_str(&figure.svg);
    }
    let (header, rows) = cells(experiment, outcome);
    let words = words(experiment);
    let class = |column| {
        if words.contains(&column) {
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
    for remark in remarks(experiment, outcome) {
        write!(html, "<li>{}</li>", escape(&remark))?;
    }
    html.push_str("</ul>\n");
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
