//! `[measure]`.

use pepd_packet::PerMyriad;

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::Measure;
use crate::report::{Problem, Problems};
use crate::section::Section;

pub(super) fn measure(root: &Section<'_>, problems: &mut Problems) -> Measure {
    let section = root.table(problems, "measure", keys::MEASURE);
    let unsplit = section.and_then(|it| it.optional(problems, "unsplit", unsplit));
    Measure {
        unsplit: unsplit.flatten(),
    }
}

fn unsplit(field: Field<'_>) -> Result<Option<PerMyriad>, Problem> {
    if field.value().as_str() == Some("off") {
        return Ok(None);
    }
    field.percent(bounds::UNSPLIT).map(Some)
}
