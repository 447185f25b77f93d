//! The output of a test run, passed on as it comes and read for what failed, passed and was
//! skipped.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// The words that begin the line of a skipped test (`pepd_testbed::report_skip`).
const SKIPPED: &str = "SKIPPED ";

/// The results of a test run, as read from its standard output and standard error.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestOutput {
    /// The tests that were skipped, each with its place and reason.
    pub skipped: Vec<String>,
    /// The names of the tests that passed.
    pub passed: BTreeSet<String>,
    /// The names of the tests that failed.
    pub failed: BTreeSet<String>,
}

impl TestOutput {
    /// Runs `command` to its end, with its output passed on as it comes, and reads it.
    ///
    /// # Errors
    /// When it cannot be run or its output cannot be passed on.
    pub fn of(command: &mut Command) -> Result<(ExitStatus, Self)> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        let (output, errors) = thread::scope(|scope| {
            let errors = scope.spawn(|| Self::pass_on(BufReader::new(stderr), io::stderr()));
            let output = Self::pass_on(BufReader::new(stdout), io::stdout());
            (output, errors.join())
        });
        let status = child.wait()?;
        let mut output = output?;
        output.add(errors.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok((status, output))
    }

    fn pass_on(lines: impl BufRead, mut to: impl Write) -> io::Result<Self> {
        let mut output = Self::default();
        for line in lines.split(b'\n') {
            let mut line = line?;
            output.note(String::from_utf8_lossy(&line).trim_end());
            line.push(b'\n');
            to.write_all(&line)?;
        }
        Ok(output)
    }

    fn note(&mut self, line: &str) {
        // A test's line may begin where another's output has not ended.
        if let Some(at) = line.find(SKIPPED) {
            self.skipped.push(line[at + SKIPPED.len()..].to_owned());
        } else if let Some(test) = line.strip_prefix("test ") {
            if let Some(name) = test.strip_suffix(" ... FAILED") {
                self.failed.insert(name.to_owned());
            } else if let Some(name) = test.strip_suffix(" ... ok") {
                self.passed.insert(name.to_owned());
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.skipped.extend(other.skipped);
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::TestOutput;

    const LINES: &str = "warning: x
SKIPPED a::b (f.rs:1): not root
test ... SKIPPED c: why
test one::v_4 ... ok
test two ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
error: 1 target failed:
    `-p pepd --test it`
";

    #[test]
    fn lines_are_passed_on_and_understood() {
        let mut passed_on = Vec::new();
        let output = TestOutput::pass_on(LINES.as_bytes(), &mut passed_on).unwrap();
        assert_eq!(passed_on, LINES.as_bytes());
        let expected = TestOutput {
            skipped: vec!["a::b (f.rs:1): not root".into(), "c: why".into()],
            passed: ["one::v_4".to_owned()].into(),
            failed: ["two".to_owned()].into(),
        };
        assert_eq!(output, expected);
    }
}
