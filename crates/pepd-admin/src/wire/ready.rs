//! Whether the box is fit: whether connections are best led to it.

use serde::{Deserialize, Serialize};

/// Whether the box is fit, as a whole and for each campus.
///
/// There are two questions. *New*: are new connections to be led here? *Live*: are those that there are
/// to be left here, although new ones may be better off elsewhere? A router that leads everything away at
/// once, as VRRP does, cuts the connections that a box has, and asks the second one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Readiness {
    /// Whether new connections are to be led here.
    pub new: Fit,
    /// Whether the connections that there are are to be left here.
    pub live: Fit,
    /// The same for the connections of each campus.
    pub campuses: Vec<CampusReadiness>,
}

/// Whether the box is fit for one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fit {
    /// Whether it is.
    pub fit: bool,
    /// The reason why not; of a box that is fit, what is to be known all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Whether the box is fit for the connections of one campus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CampusReadiness {
    /// `[[campus]] name`.
    pub name: String,
    /// Whether new ones are to be led here.
    pub new: Fit,
    /// Whether those that there are are to be left here.
    pub live: Fit,
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadyQuery {
    /// About the connections of this campus alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub campus: Option<String>,
    /// About the connections that there are, and not about new ones.
    #[serde(default)]
    pub live: bool,
}

/// What is answered to a [`ReadyQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyAnswer {
    /// Whether it is fit.
    pub fit: bool,
    /// The answer in a line, without its end.
    pub line: String,
}

/// A campus that the daemon does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon has no campus `{name}`; it has: {}", names.join(", "))]
pub struct NoSuchCampus {
    name: String,
    names: Vec<String>,
}

impl Fit {
    /// Returns that of something that is fit, without more to know.
    pub fn yes() -> Self {
        Self {
            fit: true,
            why: None,
        }
    }

    /// Returns that of something that is not, and why.
    pub fn unfit(why: impl Into<String>) -> Self {
        Self {
            fit: false,
            why: Some(why.into()),
        }
    }
}

impl Readiness {
    /// Answers a question.
    ///
    /// # Errors
    /// If there is no such campus.
    pub fn answer(&self, query: &ReadyQuery) -> Result<ReadyAnswer, NoSuchCampus> {
        let (new, live) = match &query.campus {
            None => (&self.new, &self.live),
            Some(name) => {
                let campus = self.campuses.iter().find(|campus| campus.name == *name);
                let campus = campus.ok_or_else(|| NoSuchCampus {
                    name: name.clone(),
                    names: self.campuses.iter().map(|it| it.name.clone()).collect(),
                })?;
                (&campus.new, &campus.live)
            }
        };
        let asked = if query.live { live } else { new };
        let mut line = match asked.fit {
            true => "ready".to_owned(),
            false => "not ready".to_owned(),
        };
        if query.live {
            line += " for the connections that it has";
        }
        if let Some(campus) = &query.campus {
            line += &format!(" (campus {campus})");
        }
        if let Some(why) = &asked.why {
            line += &format!(": {why}");
        }
        Ok(ReadyAnswer {
            fit: asked.fit,
            line,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_has_its_answer_in_a_line() {
        let readiness = Readiness {
            new: Fit::unfit("draining, 3 connections are left"),
            live: Fit {
                fit: true,
                why: Some("draining, 3 connections are left".to_owned()),
            },
            campuses: vec![CampusReadiness {
                name: "b".to_owned(),
                new: Fit::unfit("the peer hb-i is silent"),
                live: Fit::yes(),
            }],
        };
        let ask = |campus: Option<&str>, live| {
            let campus = campus.map(str::to_owned);
            readiness.answer(&ReadyQuery { campus, live })
        };
        let said = |campus, live| ask(campus, live).map(|answer| (answer.fit, answer.line));
        let line = |fit, line: &str| Ok((fit, line.to_owned()));
        assert_eq!(
            said(None, false),
            line(false, "not ready: draining, 3 connections are left")
        );
        assert_eq!(
            said(None, true),
            line(
                true,
                "ready for the connections that it has: draining, 3 connections are left"
            )
        );
        assert_eq!(
            said(Some("b"), false),
            line(false, "not ready (campus b): the peer hb-i is silent")
        );
        let unknown = said(Some("c"), false).unwrap_err().to_string();
        assert_eq!(unknown, "the daemon has no campus `c`; it has: b");
    }
}
