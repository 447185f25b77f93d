//! Names that are given twice.

use std::collections::HashMap;

use toml::Spanned;

use crate::report::{Problem, Problems, shown};

/// Notes a problem for every name that was given before.
pub(super) fn refuse_duplicates<'t>(
    what: &str,
    names: impl IntoIterator<Item = &'t Spanned<&'t str>>,
    problems: &mut Problems,
) {
    let mut seen = HashMap::new();
    for name in names {
        let text = *name.get_ref();
        if let Some(first) = seen.insert(text, name.span()) {
            problems.push(
                Problem::new(
                    name.span(),
                    format!("two {what} are named `{}`", shown(text)),
                )
                .label("the second one")
                .also(first, "the first one")
                .help("give each a name of its own"),
            );
        }
    }
}
