//! Problems with their place in the file, and how they are shown.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::ops::Range;

use annotate_snippets::{
    AnnotationKind, Group, Level, Origin, Renderer, Snippet, normalize_untrusted_str,
};

/// A range of bytes in the file.
pub(crate) type Span = Range<usize>;

/// Everything that is wrong with a configuration file.
///
/// Each problem shows file, line and column, the line itself with what is wrong marked in it,
/// and what would be right. `Display` is plain text; see [`Report::render`] for colours. There
/// is no newline at the end.
#[derive(Debug, Clone)]
pub struct Report {
    origin: String,
    text: String,
    problems: Vec<Problem>,
}

impl Report {
    /// Returns the report for a file that could not be read as text at all.
    pub fn unreadable(origin: &str, error: &Error) -> Self {
        let (what, cure) = match error.kind() {
            ErrorKind::NotFound => (
                "there is no such file".to_owned(),
                "create it, starting from one of the files in pepd's config/ folder, or name \
                 another with `-c FILE`"
                    .to_owned(),
            ),
            ErrorKind::IsADirectory => (
                "it is a directory".to_owned(),
                format!(
                    "name a file in it, such as `-c {}/pepd.toml`",
                    origin.trim_end_matches('/')
                ),
            ),
            ErrorKind::PermissionDenied => (
                "permission denied".to_owned(),
                "run pepd as root, or let its user read the file and enter the folders above it"
                    .to_owned(),
            ),
            ErrorKind::InvalidData => (
                "it is not UTF-8 text".to_owned(),
                "name a TOML file, and save it as UTF-8".to_owned(),
            ),
            _ => (
                error.to_string(),
                "name a readable TOML file with `-c FILE`".to_owned(),
            ),
        };
        let title = format!("cannot read the configuration: {what}");
        let problem = Problem::of_file(title).help(cure);
        Self::new(origin, "", vec![problem])
    }

    /// Returns a report of these problems, in the order of the file.
    pub(crate) fn new(origin: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.at.as_ref().map(|at| at.start));
        Self {
            origin: shown(origin),
            text: text.to_owned(),
            problems,
        }
    }

    /// Returns the report as text, with terminal colours if asked for.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let one = |problem: &Problem| renderer.render(&[self.group(problem)]);
        let mut parts: Vec<String> = self.problems.iter().take(Self::SHOWN).map(one).collect();
        let hidden = self.problems.len().saturating_sub(Self::SHOWN);
        if hidden > 0 {
            let title = format!("and {hidden} more problems in {}", self.origin);
            parts.push(renderer.render(&[Group::with_title(Level::ERROR.primary_title(title))]));
        }
        parts.join("\n\n")
    }

    /// Nobody reads more of them, and a file that is no configuration at all can have thousands.
    const SHOWN: usize = 50;

    fn group<'a>(&'a self, problem: &'a Problem) -> Group<'a> {
        let mut group = match &problem.at {
            None => Level::ERROR
                .primary_title(problem.title.as_str())
                .element(Origin::path(self.origin.as_str())),
            Some(at) => {
                let mut primary = AnnotationKind::Primary.span(self.within(at));
                if let Some(label) = &problem.label {
                    primary = primary.label(label.as_str());
                }
                let context = problem.also.as_deref().map(|(span, label)| {
                    AnnotationKind::Context
                        .span(self.within(span))
                        .label(label.as_str())
                });
                let snippet = Snippet::source(self.text.as_str())
                    .path(self.origin.as_str())
                    .annotation(primary)
                    .annotations(context);
                Level::ERROR
                    .primary_title(problem.title.as_str())
                    .element(snippet)
            }
        };
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(normalize_untrusted_str(help)));
        }
        group
    }

    /// Returns the span, cut to what is in the text: the renderer would panic at one that is not,
    /// and a syntax error can point past the end or into the middle of a character.
    fn within(&self, span: &Span) -> Span {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.ceil_char_boundary(span.end);
        start..end.max(start)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}

/// One thing that is wrong.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    at: Option<Span>,
    title: String,
    label: Option<String>,
    // Boxed to keep results small: few problems have one.
    also: Option<Box<(Span, String)>>,
    help: Option<String>,
}

impl Problem {
    /// Says that `title` is wrong, at this place.
    pub(crate) fn new(at: Span, title: impl Into<String>) -> Self {
        Self {
            at: Some(at),
            title: title.into(),
            label: None,
            also: None,
            help: None,
        }
    }

    /// Says that `title` is wrong with the file, at no place in it.
    pub(crate) fn of_file(title: impl Into<String>) -> Self {
        Self {
            at: None,
            ..Self::new(0..0, title)
        }
    }

    /// Adds a few words beside the caret.
    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds a second place that has to do with it.
    pub(crate) fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.also = Some(Box::new((span, label.into())));
        self
    }

    /// Adds what would be right.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The problems found so far. Reading goes on after a problem, so that all are found at once.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Returns the value, or else notes the problem.
    pub(crate) fn take<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.push(problem)).ok()
    }

    /// Returns the number of problems.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_report(self, origin: &str, text: &str) -> Report {
        Report::new(origin, text, self.0)
    }
}

/// Returns text from the file as it is quoted in a message: on one line, without control
/// characters, and not endless.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == LONGEST {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Lists names: `a`, `b` and `c`, in backticks.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names
        .into_iter()
        .map(|name| format!("`{}`", shown(name)))
        .collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// Returns the candidate that is most likely meant by a misspelt name, if one is near.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // The distance takes time proportional to the product of the lengths.
    if name.len() > 64 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|&(distance, candidate)| distance <= (candidate.len() / 3).max(1))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}
