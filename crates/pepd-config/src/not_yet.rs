//! What is designed and validated but not served by the daemon in this version. It is refused
//! rather than ignored: an operator who asks for it must not believe to have it.
//!
//! When a feature lands its entry in [`REFUSALS`] goes, and nothing else here changes.

use toml::de::{DeTable, DeValue};

use crate::field::Item;
use crate::report::{Problem, Problems};

/// A value that is refused.
struct Refusal {
    /// Keys from the top of the file; `*` is any key or any element.
    path: &'static [&'static str],
    /// Which values.
    when: fn(&DeValue) -> bool,
    /// What the daemon does not do, with its verb.
    what: &'static str,
    /// What to write in its place.
    instead: &'static str,
}

const ANY: fn(&DeValue) -> bool = |_| true;

#[rustfmt::skip] // one line each, so that each goes as one line
const REFUSALS: &[Refusal] = &[
    Refusal { path: &["admin", "metrics"], when: ANY, what: "metrics over HTTP are", instead: "leave the key out: the log tells what the daemon does" },
];

/// Notes a problem for every value that this version does not serve, but where something else
/// is wrong with the value already.
pub(crate) fn refuse(document: &DeTable<'_>, problems: &mut Problems) {
    for refusal in REFUSALS {
        let mut found = Vec::new();
        in_table(document, refusal.path, &mut found);
        for item in found {
            if (refusal.when)(item.get_ref()) && !problems.any_at(&item.span()) {
                let title = format!("{} not in this version of pepd", refusal.what);
                problems.push(
                    Problem::new(item.span(), title)
                        .label("not yet")
                        .help(refusal.instead),
                );
            }
        }
    }
}

fn in_table<'t>(table: &'t DeTable<'t>, path: &[&str], found: &mut Vec<&'t Item<'t>>) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    for (key, item) in table.iter() {
        if *first == "*" || key.get_ref() == first {
            in_item(item, rest, found);
        }
    }
}

fn in_item<'t>(item: &'t Item<'t>, path: &[&str], found: &mut Vec<&'t Item<'t>>) {
    match (item.get_ref(), path) {
        (_, []) => found.push(item),
        (DeValue::Table(table), _) => in_table(table, path, found),
        (DeValue::Array(array), ["*", rest @ ..]) => {
            for element in array.iter() {
                in_item(element, rest, found);
            }
        }
        // Of another type than it must be, which is a problem of its own.
        _ => {}
    }
}
