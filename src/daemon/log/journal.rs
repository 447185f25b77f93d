//! systemd's journal, natively: each figure of a line is a field that `journalctl` can select.
//!
//! The `tracing-journald` crate does this too, but its send waits for a journal that does not
//! read, on the thread that logs: a worker would stand still.

use std::fmt::{self, Debug};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The journal's socket (systemd-journald.service(8)).
const SOCKET: &str = "/run/systemd/journal/socket";

/// The ASCII unit separator, between a field's name and its value, on the way to the thread that
/// writes.
const UNIT: char = '\u{1f}';
/// The ASCII record separator, after a field's value.
const RECORD: char = '\u{1e}';

/// A format that gives each line as a list of fields: `MESSAGE` as text has it, `PRIORITY`, and
/// each figure by its name with `PEPD_` before it.
pub struct JournalFormat;

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // sd-daemon(3).
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "PRIORITY{UNIT}{priority}{RECORD}")?;
        write!(writer, "SYSLOG_IDENTIFIER{UNIT}pepd{RECORD}")?;
        write!(writer, "MESSAGE{UNIT}")?;
        context.format_fields(writer.by_ref(), event)?;
        write!(writer, "{RECORD}")?;
        let mut fields = Fields {
            writer,
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result
    }
}

struct Fields<'a> {
    writer: Writer<'a>,
    result: fmt::Result,
}

impl Fields<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() != "message" && self.result.is_ok() {
            let name = field.name().to_ascii_uppercase();
            self.result = write!(self.writer, "PEPD_{name}{UNIT}{value}{RECORD}");
        }
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// A socket to the journal, which takes one line per write.
#[derive(Debug)]
pub struct Journal(UnixDatagram);

impl Journal {
    /// Connects to the journal; `None` where there is none.
    pub fn open() -> Option<Self> {
        Self::at(Path::new(SOCKET)).ok()
    }

    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self(socket))
    }
}

impl io::Write for Journal {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(&entry(line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line in the journal's own form (systemd's "Native Journal Protocol"): `NAME=value`, or,
/// where the value has more than one line, its length before it.
fn entry(line: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(line.len() + 64);
    for field in line.split(|byte| *byte == RECORD as u8) {
        let Some(at) = field.iter().position(|byte| *byte == UNIT as u8) else {
            continue;
        };
        let (name, value) = (&field[..at], &field[at + 1..]);
        entry.extend_from_slice(name);
        if value.contains(&b'\n') {
            entry.push(b'\n');
            entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            entry.push(b'=');
        }
        entry.extend_from_slice(value);
        entry.push(b'\n');
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_a_field_and_a_text_of_two_lines_has_its_length() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let (writer, guard) = tracing_appender::non_blocking(Journal::at(&path).unwrap());
        let log = tracing_subscriber::fmt()
            .event_format(JournalFormat)
            .with_writer(writer)
            .finish();
        tracing::subscriber::with_default(log, || {
            tracing::info!(bytes_up = 7_u64, errno = "ECONNRESET", "connection ended");
            tracing::error!("refused:\nline 3");
        });
        drop(guard);
        let mut buffer = [0; 1024];
        let mut next = || {
            let len = journal.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..len].to_vec()).unwrap()
        };
        let first = next();
        assert!(
            first.starts_with("PRIORITY=6\nSYSLOG_IDENTIFIER=pepd\nMESSAGE=connection ended"),
            "{first}"
        );
        assert!(
            first.ends_with("PEPD_BYTES_UP=7\nPEPD_ERRNO=ECONNRESET\n"),
            "{first}"
        );
        let second = next();
        let length = "\u{f}\0\0\0\0\0\0\0";
        assert!(
            second.ends_with(&format!("MESSAGE\n{length}refused:\nline 3\n")),
            "{second:?}"
        );
    }
}
