//! What the doctor has to say: one finding per matter.

use std::fmt;
use std::ops::Deref;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Ok,
    /// Worth knowing.
    Note,
    /// pepd works, and not as well as it could.
    Slow,
    /// `pepd run` fails, or connections end in nothing.
    Stop,
}

impl Level {
    /// All levels, from the one that matters most.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Slow, Self::Note, Self::Ok];

    /// Gives the level as the text and the JSON have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Slow => "slow",
            Self::Stop => "stop",
        }
    }
}

/// A finding of the doctor's about one thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of what was looked at; stable between versions.
    pub id: &'static str,
    /// The subject, where there are several: an interface, a leg, a campus.
    pub subject: Option<String>,
    /// The severity.
    pub level: Level,
    /// The state that was found, with figures.
    pub found: String,
    /// The reason why that matters to a helper box.
    pub why: Option<String>,
    /// A shell command that puts it right.
    pub cure: Option<Cure>,
    /// The advice where no single command is a cure, or beside one.
    pub advice: Option<Advice>,
}

impl Finding {
    /// Makes a finding without a reason or a cure.
    pub fn new(level: Level, id: &'static str, found: impl Into<String>) -> Self {
        Self {
            id,
            subject: None,
            level,
            found: found.into(),
            why: None,
            cure: None,
            advice: None,
        }
    }

    /// Makes a finding that all is well.
    pub fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Ok, id, found)
    }

    /// Makes a finding that is worth knowing.
    pub fn note(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Note, id, found)
    }

    /// Makes a finding that pepd works less well than it could.
    pub fn slow(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Slow, id, found)
    }

    /// Makes a finding that `pepd run` fails, or connections end in nothing.
    pub fn stop(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Stop, id, found)
    }

    /// Says what it is about.
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Says why it matters.
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// Gives the shell command that puts it right.
    pub fn cure(mut self, cure: impl Into<Cure>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    /// Says in words what to do.
    pub fn advice(mut self, text: impl Into<String>) -> Self {
        self.advice = Some(Advice::Words(text.into()));
        self
    }

    /// Says in words what to do instead of the cure.
    pub fn otherwise(mut self, text: impl Into<String>) -> Self {
        self.advice = Some(Advice::InsteadOfCure(text.into()));
        self
    }
}

/// A shell command that puts a finding right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Cure {
    /// Sets kernel parameters, which lasts until the host's next start.
    Sysctl(String),
    /// Any other command.
    Command(String),
}

impl Deref for Cure {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Sysctl(command) | Self::Command(command) => command,
        }
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<T: Into<String>> From<T> for Cure {
    fn from(command: T) -> Self {
        Self::Command(command.into())
    }
}

/// The advice, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Advice {
    /// The advice where there is no cure, or what to know beside one.
    Words(String),
    /// The advice on what can be done instead of the cure.
    InsteadOfCure(String),
}

impl From<Advice> for String {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::Words(text) => text,
            Advice::InsteadOfCure(text) => format!("or {text}"),
        }
    }
}

/// Gives the level of the worst finding.
pub fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Ok)
}
