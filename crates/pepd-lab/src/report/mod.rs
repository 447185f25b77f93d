//! Reports: a table on the terminal, figures, and a page with all of them.

mod computed;
mod figure;
mod matrix;
mod number;
mod page;
mod svg;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::paper::{Experiment, Paper};
use crate::results::{Outcome, Results};

pub use computed::table as computed;
use svg::Figure;
pub use table::table;

/// Writes `FOLDER/NAME.svg` for every figure, those that are computed too, and `FOLDER/report.html`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(papers: &[Paper], results: &Results, folder: &Path) -> Result<()> {
    let of = |experiment: &Experiment| match results.experiments.get(&experiment.name) {
        Some(outcome) => figures(experiment, outcome),
        None => Ok(Vec::new()),
    };
    for experiment in papers.iter().flat_map(|paper| &paper.experiments) {
        for figure in of(experiment)? {
            put(&folder.join(format!("{}.svg", figure.name)), &figure.svg)?;
        }
    }
    for computed in papers.iter().flat_map(|paper| &paper.computed) {
        put(
            &folder.join(format!("{}.svg", computed.name)),
            &computed::figure(computed)?,
        )?;
    }
    put(
        &folder.join("report.html"),
        &page::page(papers, results, &of)?,
    )
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn figures(experiment: &Experiment, outcome: &Outcome) -> Result<Vec<Figure>> {
    if experiment.matrix.is_some() {
        let Some(means) = matrix::Means::of(outcome) else {
            return Ok(Vec::new());
        };
        return Ok(vec![Figure {
            name: experiment.name.clone(),
            svg: matrix::figure(experiment, &means)?,
        }]);
    }
    let mut figures = Vec::new();
    // A trace is of one point: nothing to draw a line through.
    let over_axis = if outcome.traces.is_empty() {
        outcome.metrics()
    } else {
        Vec::new()
    };
    for (index, metric) in over_axis.into_iter().enumerate() {
        let suffix = if index == 0 {
            String::new()
        } else {
            format!("-{}", metric.suffix())
        };
        figures.push(Figure {
            name: format!("{}{suffix}", experiment.name),
            svg: figure::over_axis(experiment, outcome, metric)?,
        });
    }
    for (index, trace) in outcome.traces.iter().enumerate() {
        let name = format!("{}-{}", experiment.name, index + 1);
        let svg = figure::over_time(experiment, trace)?;
        figures.push(Figure { name, svg });
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper;
    use crate::results::tests::example;

    #[test]
    fn every_experiment_can_be_reported_and_the_page_needs_nothing_else() {
        let papers = paper::all().unwrap();
        let outcome = example().experiments.remove("jain-ott-fig4").unwrap();
        let mut results = Results::new();
        for experiment in papers.iter().flat_map(|paper| &paper.experiments) {
            let mut outcome = outcome.clone();
            if !matches!(experiment.workload, paper::Workload::Trace) {
                outcome.traces.clear();
            }
            for record in &mut outcome.records {
                record.x = experiment.points[0].x;
                record.variant = match &experiment.matrix {
                    Some(_) => paper::Matrix::direct("reno"),
                    None => experiment.variants[0].name.clone(),
                };
            }
            results.experiments.insert(experiment.name.clone(), outcome);
        }
        let folder = tempfile::tempdir().unwrap();
        write(&papers, &results, folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
        let computed = papers.iter().flat_map(|paper| &paper.computed);
        let computed: Vec<_> = computed.map(|figure| &figure.name).collect();
        for name in results.experiments.keys().chain(computed.iter().copied()) {
            assert!(page.contains(&format!("id=\"{name}\"")), "{name}");
        }
        let all = results.experiments.len() + computed.len();
        assert_eq!(page.matches("<svg").count(), all);
        for outside in ["src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
