//! The papers' experiments: their parameters and the numbers they printed, one file per paper.

mod computed;
mod experiment;
mod leg;
mod matrix;
mod units;
mod variant;
mod varying;
mod workload;

use anyhow::{Context as _, Result};
use serde::Deserialize;

pub use computed::Computed;
pub use experiment::{Boxes, Experiment, Limit, Point, Policer, Printed, Timing};
pub use leg::Leg;
pub use matrix::Matrix;
pub use variant::{ProxyKind, Variant};
pub use workload::{Browsing, Watching, Workload};

/// The files, with the names that messages call them by.
const FILES: [(&str, &str); 7] = [
    (
        "jain-ott-2006.toml",
        include_str!("../../data/jain-ott-2006.toml"),
    ),
    (
        "baccelli-2009.toml",
        include_str!("../../data/baccelli-2009.toml"),
    ),
    (
        "farkas-2012.toml",
        include_str!("../../data/farkas-2012.toml"),
    ),
    ("joshi.toml", include_str!("../../data/joshi.toml")),
    ("bhutani.toml", include_str!("../../data/bhutani.toml")),
    ("find-rate.toml", include_str!("../../data/find-rate.toml")),
    ("model.toml", include_str!("../../data/model.toml")),
];

/// A paper and the experiments of it that are repeated.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Paper {
    /// The authors.
    pub authors: String,
    /// The title.
    pub title: String,
    /// The year of publication, where the paper says so.
    pub year: Option<u16>,
    /// The experiments that are repeated.
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
    /// The figures that follow from formulas alone.
    #[serde(default)]
    pub computed: Vec<Computed>,
}

/// Reads the files of all papers.
///
/// # Errors
/// A mistake in a file: which, where and what. A test makes sure that there is none.
pub fn all() -> Result<Vec<Paper>> {
    FILES
        .iter()
        .map(|(name, text)| parse(text).with_context(|| (*name).to_owned()))
        .collect()
}

fn parse(text: &str) -> Result<Paper> {
    let paper: Paper = toml::from_str(text)?;
    for experiment in &paper.experiments {
        experiment
            .check()
            .with_context(|| experiment.name.clone())?;
    }
    Ok(paper)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_is_right_and_every_number_has_a_source() {
        // `all` checks what the types cannot.
        let papers = all().unwrap();
        let names: Vec<_> = papers.iter().flat_map(|paper| &paper.experiments).collect();
        let computed: Vec<_> = papers.iter().flat_map(|paper| &paper.computed).collect();
        let mut unique: BTreeSet<_> = names.iter().map(|experiment| &experiment.name).collect();
        unique.extend(computed.iter().map(|figure| &figure.name));
        assert_eq!(unique.len(), names.len() + computed.len(), "{unique:?}");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        for (_, text) in FILES {
            let wrong = text.replacen("title =", "titel = \"x\"\ntitle =", 1);
            assert!(parse(&wrong).unwrap_err().to_string().contains("titel"));
            let wrong = text.replacen("rtt =", "rtd = \"1s\"\nrtt =", 1);
            assert!(toml::from_str::<Paper>(&wrong).is_err());
        }
    }

    #[test]
    fn a_number_without_a_source_is_refused() {
        for (name, text) in FILES {
            let mut lines: Vec<&str> = text.lines().collect();
            let Some(printed) = lines
                .iter()
                .position(|line| line.contains("experiment.printed"))
            else {
                continue;
            };
            let source = (printed..lines.len()).find(|&at| lines[at].starts_with("source"));
            lines.remove(source.unwrap());
            assert!(parse(&lines.join("\n")).is_err(), "{name}");
        }
    }
}
