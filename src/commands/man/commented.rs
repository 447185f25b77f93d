//! Reads a configuration whose keys have comments, as config/pepd.toml is written, into what a manual page
//! is made of.

/// What is written between two banners (`# ── Title ──`), or before the first, without a title.
#[derive(Debug, Default)]
pub struct Part {
    /// The title.
    pub title: String,
    /// What is said of the part as a whole.
    pub about: Vec<String>,
    /// Its sections.
    pub sections: Vec<Section>,
}

/// A section of the file.
#[derive(Debug, Default)]
pub struct Section {
    /// Its header, such as `[node]`.
    pub header: String,
    /// What is said of it.
    pub about: Vec<String>,
    /// The keys that have a comment.
    pub keys: Vec<Key>,
    /// The lines of keys that have none: they are an example of what is said of the section.
    pub example: Vec<String>,
}

/// A key with its comment.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// The value that the file gives it.
    pub value: String,
    /// The comment, a text for each paragraph.
    pub about: Vec<String>,
}

/// Reads the text of such a file. What is commented out (`#key = value`) counts like what is not.
pub fn parts(text: &str) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let mut comment = Vec::new();
    for line in text.lines() {
        // There is one from the start on.
        let Some(part) = parts.last_mut() else { break };
        if let Some(title) = banner(line) {
            parts.push(Part {
                title: title.to_owned(),
                ..Part::default()
            });
        } else if let Some(line) = entry(line) {
            part.enter(line, std::mem::take(&mut comment));
        } else if let Some(text) = line.strip_prefix('#') {
            remark(text.trim(), &mut comment);
        } else {
            part.say(std::mem::take(&mut comment));
        }
    }
    parts
}

impl Part {
    /// Takes a header or a key, with the comment above it.
    fn enter(&mut self, line: &str, about: Vec<String>) {
        if line.starts_with('[') {
            self.sections.push(Section {
                header: line.to_owned(),
                about,
                ..Section::default()
            });
            return;
        }
        let Some(section) = self.sections.last_mut() else {
            return;
        };
        match line.split_once(" = ") {
            Some((name, value)) if !about.is_empty() => section.keys.push(Key {
                name: name.to_owned(),
                value: value.to_owned(),
                about,
            }),
            _ => section.example.push(line.to_owned()),
        }
    }

    /// Takes a comment that stands by itself.
    fn say(&mut self, comment: Vec<String>) {
        match self.sections.last_mut() {
            Some(section) => section.about.extend(comment),
            None => self.about.extend(comment),
        }
    }
}

fn banner(line: &str) -> Option<&str> {
    let title = line.strip_prefix("# ──")?;
    Some(title.trim_matches(['─', ' ']))
}

/// A header or a key, commented out or not: text begins with a space.
fn entry(line: &str) -> Option<&str> {
    let line = match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(' ') => return None,
        Some(rest) => rest,
        None => line,
    };
    (line.starts_with('[') || line.contains(" = ")).then_some(line)
}

/// Adds a line of a comment to its last paragraph; one without text begins another.
fn remark(text: &str, comment: &mut Vec<String>) {
    match comment.last_mut() {
        Some(paragraph) if !text.is_empty() => {
            if !paragraph.is_empty() {
                paragraph.push(' ');
            }
            paragraph.push_str(text);
        }
        _ => comment.push(text.to_owned()),
    }
}

#[test]
fn comments_go_with_what_they_are_above() {
    let text = "# File.\n\n\n# ── A part ───\n\n# About it.\n\n# Of\n# all.\n[all]\n# A key.\n#\n# More.\n\
                #key = \"x\"\nother = 1\n[[more]]\n";
    let parts = parts(text);
    assert_eq!(parts[0].about, ["File."]);
    let part = &parts[1];
    assert_eq!(
        (&*part.title, &part.about[..]),
        ("A part", &["About it.".to_owned()][..])
    );
    let section = &part.sections[0];
    assert_eq!(
        (&*section.header, &section.about[..]),
        ("[all]", &["Of all.".to_owned()][..])
    );
    let key = &section.keys[0];
    assert_eq!((&*key.name, &*key.value), ("key", "\"x\""));
    assert_eq!(key.about, ["A key.", "More."]);
    assert_eq!(section.example, ["other = 1"]);
    assert_eq!(part.sections[1].header, "[[more]]");
}
