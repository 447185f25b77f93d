//! What the daemon writes down.

/// `[log]`: what the daemon writes down, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// The format of the lines; the journal's where standard error is the journal, else text, if
    /// not given.
    pub format: Option<LogFormat>,
    /// Lines about connections that have ended, per second; what is beyond is counted. None
    /// at 0.
    pub connections: u32,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people, on standard error.
    Text,
    /// A JSON object on each line, on standard error.
    Json,
    /// Entries of systemd's journal, with fields.
    Journal,
}
