//! A transfer's progress: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::transfer::Progress;

/// The interval between lines where there can be no bar.
const LINE: Duration = Duration::from_secs(5);
const WIDTH: usize = 30;

/// Shows one transfer.
#[derive(Debug)]
pub struct Meter {
    bar: ProgressBar,
    lines: Option<Duration>,
}

impl Meter {
    /// Creates a meter for a transfer of `total` bytes.
    pub fn new(total: u64) -> Self {
        let terminal = io::stdout().is_terminal();
        let target = if terminal {
            ProgressDrawTarget::stdout()
        } else {
            ProgressDrawTarget::hidden()
        };
        let template = format!("         {{bar:{WIDTH}}} {{msg}}");
        let style = ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("█▉▊▋▌▍▎▏░");
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style);
        Self {
            bar,
            lines: (!terminal).then_some(LINE),
        }
    }

    /// Shows what has arrived so far.
    pub fn show(&mut self, progress: Progress) {
        let text = describe(progress, self.bar.length().unwrap_or_default());
        if let Some(due) = self.lines.filter(|due| progress.elapsed >= *due) {
            println!("         {text}");
            self.lines = Some(due + LINE);
        }
        self.bar.set_position(progress.bytes);
        self.bar.set_message(text);
    }

    /// Leaves the last state on the terminal.
    pub fn end(&self) {
        self.bar.abandon();
        if self.lines.is_none() {
            println!();
        }
    }
}

/// Describes the progress, as in `12.3 of 200 MB   4 s   91.0 Mbit/s`.
fn describe(progress: Progress, total: u64) -> String {
    format!(
        "{:6.1} of {} MB  {:3} s  {:6.2} Mbit/s",
        progress.bytes as f64 / 1e6,
        total / 1_000_000,
        progress.elapsed.as_secs(),
        progress.rate / 1e6,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_well() {
        let progress = Progress {
            bytes: 12_345_678,
            elapsed: Duration::from_millis(4_900),
            rate: 91e6,
        };
        let text = describe(progress, 200_000_000);
        assert_eq!(text, "  12.3 of 200 MB    4 s   91.00 Mbit/s");
    }
}
