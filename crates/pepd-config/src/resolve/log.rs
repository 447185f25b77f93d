//! `[log]`.

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Log, LogFormat};
use crate::report::{Problem, Problems};
use crate::section::Section;

const CONNECTIONS: u32 = 50;

pub(super) fn log(root: &Section<'_>, problems: &mut Problems) -> Log {
    let section = root.table(problems, "log", keys::LOG);
    let section = section.as_ref();
    let format = section.and_then(|it| it.optional(problems, "format", format));
    let connections = section.and_then(|it| {
        it.optional(problems, "connections", |field| {
            field.number(bounds::LOG_LINES)
        })
    });
    Log {
        format,
        connections: connections.unwrap_or(CONNECTIONS),
    }
}

fn format(field: Field<'_>) -> Result<LogFormat, Problem> {
    match field.text("`text`, `json` or `journal`, in quotes", "\"json\"")? {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        "journal" => Ok(LogFormat::Journal),
        other => Err(field.malformed(
            other,
            "a format of log lines",
            "write \"text\", \"json\" (an object on each line) or \"journal\" (systemd's, with \
             fields)",
        )),
    }
}
