//! A table of the file: which keys it may and must have, and how each is read.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::field::{Field, Item};
use crate::keys;
use crate::report::{Problem, Problems, Span, listed, nearest, shown};

/// One table of the file.
#[derive(Debug, Clone)]
pub(crate) struct Section<'t> {
    /// The section as its header is written: `[node]`.
    title: String,
    at: Span,
    table: &'t DeTable<'t>,
    keys: &'static [&'static str],
}

impl<'t> Section<'t> {
    /// Returns the whole file. What is missing is reported at its end.
    pub(crate) fn root(document: &'t DeTable<'t>, text: &str, problems: &mut Problems) -> Self {
        let end = text.trim_end().len();
        let root = Self {
            title: "the file".to_owned(),
            at: end..end,
            table: document,
            keys: keys::ROOT,
        };
        root.refuse_unknown(problems);
        root
    }

    /// Returns the table in this field; `None`, and a problem, if it is something else.
    pub(crate) fn of(
        field: Field<'t>,
        title: String,
        keys: &'static [&'static str],
        problems: &mut Problems,
    ) -> Option<Self> {
        let DeValue::Table(table) = field.value() else {
            let help = match keys::in_a_line(keys) {
                Some(line) => format!("write `{line}`"),
                None => format!("write `{title}`"),
            };
            problems.push(field.wrong_type("a table", help));
            return None;
        };
        let section = Self {
            title,
            at: field.span(),
            table,
            keys,
        };
        section.refuse_unknown(problems);
        Some(section)
    }

    /// Returns the header that a table within this one would have.
    pub(crate) fn title_of(&self, key: &str) -> String {
        format!("{}.{key}]", self.title.trim_end_matches(']'))
    }

    /// Returns the place where the section begins.
    pub(crate) fn span(&self) -> Span {
        self.at.clone()
    }

    /// Returns the field with this key, if it is given.
    pub(crate) fn field(&self, key: &'static str) -> Option<Field<'t>> {
        debug_assert!(self.keys.contains(&key), "{key} is not in the list of keys");
        self.table.get(key).map(|item| Field::new(key, item))
    }

    /// Reads what an optional key holds. `None` if it is not given, and after a problem.
    pub(crate) fn optional<T>(
        &self,
        problems: &mut Problems,
        key: &'static str,
        read: impl FnOnce(Field<'t>) -> Result<T, Problem>,
    ) -> Option<T> {
        problems.take(read(self.field(key)?))
    }

    /// Reads what a required key holds. `None` is always after a problem.
    pub(crate) fn required<T>(
        &self,
        problems: &mut Problems,
        key: &'static str,
        example: &str,
        read: impl FnOnce(Field<'t>) -> Result<T, Problem>,
    ) -> Option<T> {
        if self.field(key).is_none() {
            problems.push(
                Problem::new(self.span(), format!("`{}` has no `{key}`", self.title))
                    .label(format!("`{key}` is required"))
                    .help(format!("add `{key} = {example}`")),
            );
        }
        self.optional(problems, key, read)
    }

    /// Returns the section `[key]` of the file.
    pub(crate) fn table(
        &self,
        problems: &mut Problems,
        key: &'static str,
        keys: &'static [&'static str],
    ) -> Option<Section<'t>> {
        Section::of(self.field(key)?, format!("[{key}]"), keys, problems)
    }

    /// Returns the sections `[[key]]` of the file, in their order.
    pub(crate) fn tables(
        &self,
        problems: &mut Problems,
        key: &'static str,
        keys: &'static [&'static str],
    ) -> Vec<Section<'t>> {
        let Some(field) = self.field(key) else {
            return Vec::new();
        };
        let title = format!("[[{key}]]");
        let DeValue::Array(array) = field.value() else {
            problems.push(field.wrong_type("a list of tables", format!("write `{title}`")));
            return Vec::new();
        };
        let section = |item| Section::of(Field::new(key, item), title.clone(), keys, problems);
        array.iter().filter_map(section).collect()
    }

    fn refuse_unknown(&self, problems: &mut Problems) {
        for (key, item) in entries(self.table) {
            let name = *key.get_ref();
            if self.keys.contains(&name) {
                continue;
            }
            let home = || keys::ALL.iter().find(|(_, keys)| keys.contains(&name));
            let help = if let Some(near) = nearest(name, self.keys.iter().copied()) {
                format!("did you mean `{near}`?")
            } else if let Some((home, _)) = home() {
                format!("`{name}` belongs in `{home}`")
            } else {
                format!("the keys here are {}", listed(self.keys.iter().copied()))
            };
            let is_section = matches!(item.get_ref(), DeValue::Table(_) | DeValue::Array(_));
            let kind = if is_section && self.is_root() {
                "section"
            } else {
                "key"
            };
            let title = format!(
                "unknown {kind} `{}` in {}",
                shown(name),
                self.quoted_title()
            );
            let label = format!("not a {kind} of pepd's");
            problems.push(Problem::new(key.span(), title).label(label).help(help));
        }
    }

    fn quoted_title(&self) -> String {
        if self.is_root() {
            self.title.clone()
        } else {
            format!("`{}`", self.title)
        }
    }

    fn is_root(&self) -> bool {
        !self.title.starts_with('[')
    }
}

/// Returns every key of a table with its value, in the order of the file.
pub(crate) fn entries<'t>(table: &'t DeTable<'t>) -> Vec<(Spanned<&'t str>, &'t Item<'t>)> {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, item)| (Spanned::new(key.span(), key.get_ref().as_ref()), item))
        .collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}
