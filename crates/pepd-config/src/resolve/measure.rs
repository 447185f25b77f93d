//! `[measure]`.

use pepd_packet::PerMyriad;

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Capture, Measure, Rule, chooses};
use crate::report::{Problem, Problems, Span};
use crate::section::Section;

/// Gives what is measured, and where the file says that nothing is.
pub(super) fn measure(root: &Section<'_>, problems: &mut Problems) -> (Measure, Option<Span>) {
    let section = root.table(problems, "measure", keys::MEASURE);
    let off = section.as_ref().and_then(|it| it.field("unsplit"));
    let off = off.filter(is_off).map(|field| field.span());
    let unsplit = section.and_then(|it| it.optional(problems, "unsplit", unsplit));
    let unsplit = unsplit.flatten();
    (Measure { unsplit }, off)
}

fn unsplit(field: Field<'_>) -> Result<Option<PerMyriad>, Problem> {
    if is_off(&field) {
        return Ok(None);
    }
    field.percent(bounds::UNSPLIT).map(Some)
}

fn is_off(field: &Field<'_>) -> bool {
    field.value().as_str() == Some("off")
}

/// Notes a problem where nothing is to be measured, and what is measured is to decide.
pub(super) fn fits(off: Option<Span>, capture: &Capture, rules: &[Rule], problems: &mut Problems) {
    if let Some(off) = off
        && chooses(capture, rules)
    {
        problems.push(
            Problem::new(off, "`unsplit` is off, and `auto` finds out by measuring")
                .label("nothing is measured by this")
                .help("take it out, which is 4 %, or write the share that is to be measured; or write `split = \"always\"`"),
        );
    }
}
