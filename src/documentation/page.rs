//! The pages: their links, their headings and their code.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The root of the sources.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below `folder`, which is relative to the root, as paths from the root.
pub fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(path),
                false => found.push(path.to_str().unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// A page of the documentation.
pub struct Page {
    /// Its path from the root.
    pub name: String,
    text: String,
}

/// A piece of code in a page.
pub struct Code {
    /// The line of the page that it begins in.
    pub line: usize,
    /// What it is.
    pub kind: Kind,
    /// Its text.
    pub text: String,
}

/// The ways to write code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block between fences, with the language that its fence names.
    Fenced(String),
    /// A block by its indentation.
    Indented,
    /// Within a paragraph.
    Span,
}

impl Page {
    /// All pages: those at the root, those in docs/, and the crates' own.
    pub fn all() -> Vec<Self> {
        let at_root = [
            "README.md",
            "ARCHITECTURE.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
        ];
        let mut names: Vec<_> = at_root.map(str::to_owned).into();
        names.extend(files("docs"));
        names.extend(files("crates"));
        let pages = names.into_iter().filter(|name| name.ends_with(".md"));
        pages.map(Self::read).collect()
    }

    fn read(name: String) -> Self {
        let text = fs::read_to_string(root().join(&name));
        let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, text }
    }

    /// Says where a line of the page is.
    pub fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.name)
    }

    fn events(&self) -> impl Iterator<Item = (usize, Event<'_>)> {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        let parser = Parser::new_ext(&self.text, options).into_offset_iter();
        parser.map(|(event, range)| {
            let line = self.text[..range.start].matches('\n').count() + 1;
            (line, event)
        })
    }

    /// Where its links lead, with their lines.
    pub fn links(&self) -> Vec<(usize, String)> {
        let links = self.events().filter_map(|(line, event)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((line, dest_url.into_string()))
            }
            _ => None,
        });
        links.collect()
    }

    /// The anchors of its headings, as GitHub and mdBook make them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        let mut heading: Option<String> = None;
        for (_, event) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let before = times.entry(anchor.clone()).or_default();
                    anchors.insert(match *before {
                        0 => anchor,
                        n => format!("{anchor}-{n}"),
                    });
                    *before += 1;
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        anchors
    }

    /// All its code.
    pub fn code(&self) -> Vec<Code> {
        let mut found = Vec::new();
        let mut block: Option<Code> = None;
        for (line, event) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let kind = match kind {
                        CodeBlockKind::Fenced(language) => Kind::Fenced(language.into_string()),
                        CodeBlockKind::Indented => Kind::Indented,
                    };
                    // The line after the fence is the first.
                    let line = line + usize::from(kind != Kind::Indented);
                    let text = String::new();
                    block = Some(Code { line, kind, text });
                }
                Event::End(TagEnd::CodeBlock) => found.extend(block.take()),
                Event::Text(text) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&text);
                    }
                }
                Event::Code(text) => found.push(Code {
                    line,
                    kind: Kind::Span,
                    text: text.into_string(),
                }),
                _ => {}
            }
        }
        found
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[test]
fn an_anchor_is_the_headings_words() {
    assert_eq!(anchor("Jain & Ott"), "jain--ott");
    assert_eq!(anchor("While the daemon runs"), "while-the-daemon-runs");
    assert_eq!(anchor("`rate`, and why"), "rate-and-why");
}

#[test]
fn a_page_is_read_as_it_is_shown() {
    let text = "# A\n\n[b](c.md#d)\n\n## A\n\n`e f`\n\n```sh\ng\n```\n\n    h\n";
    let page = Page {
        name: "x.md".to_owned(),
        text: text.to_owned(),
    };
    assert_eq!(page.links(), [(3, "c.md#d".to_owned())]);
    assert_eq!(page.anchors().into_iter().collect::<Vec<_>>(), ["a", "a-1"]);
    let code = page.code();
    let code: Vec<_> = code
        .iter()
        .map(|it| (it.line, &it.kind, &*it.text))
        .collect();
    let fenced = Kind::Fenced("sh".to_owned());
    let wanted = [
        (7, &Kind::Span, "e f"),
        (10, &fenced, "g\n"),
        (13, &Kind::Indented, "h\n"),
    ];
    assert_eq!(code, wanted);
}
