//! What the doctor has to say: one finding per matter.

use serde::Serialize;

/// How much a finding matters.
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
    /// From the one that matters most.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Slow, Self::Note, Self::Ok];

    /// As it is written in the text and in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Slow => "slow",
            Self::Stop => "stop",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; stable between versions.
    pub id: &'static str,
    /// What it is about where there are several: an interface, a leg, a campus.
    pub subject: Option<String>,
    /// How much it matters.
    pub level: Level,
    /// What was found, with figures.
    pub found: String,
    /// Why that matters to a helper box.
    pub why: Option<String>,
    /// A shell command that puts it right.
    pub cure: Option<String>,
    /// What to do where no single command does it, or beside it.
    pub advice: Option<String>,
}

impl Finding {
    /// A finding of which nothing is known yet but what was found.
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

    /// All is well.
    pub fn ok(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Ok, id, found)
    }

    /// Worth knowing.
    pub fn note(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Note, id, found)
    }

    /// pepd works less well than it could.
    pub fn slow(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Slow, id, found)
    }

    /// `pepd run` fails, or connections end in nothing.
    pub fn stop(id: &'static str, found: impl Into<String>) -> Self {
        Self::new(Level::Stop, id, found)
    }

    /// What it is about.
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Why it matters.
    pub fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    /// The shell command that puts it right.
    pub fn cure(mut self, command: impl Into<String>) -> Self {
        self.cure = Some(command.into());
        self
    }

    /// What to do, in words.
    pub fn advice(mut self, text: impl Into<String>) -> Self {
        self.advice = Some(text.into());
        self
    }
}

/// What the findings come to: the level of the worst.
pub fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Ok)
}
