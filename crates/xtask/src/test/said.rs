//! What a run of tests says while it is passed on: what failed, what passed, what was skipped.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// What a skipped test begins its line with (`pepd_testbed::report_skip`).
const SKIPPED: &str = "SKIPPED ";

/// What was read from both outputs of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The tests that were skipped, each with its reason.
    pub skipped: Vec<String>,
    pub passed: BTreeSet<String>,
    pub failed: BTreeSet<String>,
    /// What cargo takes to choose the targets in which something failed, as `--test life`.
    pub targets: BTreeSet<Vec<String>>,
}

impl Said {
    /// Runs `command` to its end, with its output passed on as it comes.
    ///
    /// # Errors
    /// When it cannot be run or its output cannot be passed on.
    pub fn by(command: &mut Command) -> Result<(ExitStatus, Self)> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        let (said, errors) = thread::scope(|scope| {
            let errors = scope.spawn(|| Self::pass_on(BufReader::new(stderr), io::stderr()));
            let said = Self::pass_on(BufReader::new(stdout), io::stdout());
            (said, errors.join())
        });
        let status = child.wait()?;
        let mut said = said?;
        said.add(errors.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        Ok((status, said))
    }

    fn pass_on(lines: impl BufRead, mut to: impl Write) -> io::Result<Self> {
        let mut said = Self::default();
        for line in lines.split(b'\n') {
            let mut line = line?;
            said.note(String::from_utf8_lossy(&line).trim_end());
            line.push(b'\n');
            to.write_all(&line)?;
        }
        Ok(said)
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
        } else if let Some(target) = line.strip_prefix("    `-p ") {
            let mut words = target.trim_end_matches('`').split(' ').map(str::to_owned);
            // The package: with all of them nothing is built anew.
            words.next();
            self.targets.insert(words.collect());
        }
    }

    fn add(&mut self, other: Self) {
        self.skipped.extend(other.skipped);
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
        self.targets.extend(other.targets);
    }
}

#[cfg(test)]
mod tests {
    use super::Said;

    const LINES: &str = "warning: x
SKIPPED a::b (f.rs:1): not root
test ... SKIPPED c: why
test one::v_4 ... ok
test two ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
error: 2 targets failed:
    `-p pepd --test life`
    `-p pepd-net --lib`
";

    #[test]
    fn lines_are_passed_on_and_understood() {
        let mut passed_on = Vec::new();
        let said = Said::pass_on(LINES.as_bytes(), &mut passed_on).unwrap();
        assert_eq!(passed_on, LINES.as_bytes());
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let expected = Said {
            skipped: vec!["a::b (f.rs:1): not root".into(), "c: why".into()],
            passed: ["one::v_4".to_owned()].into(),
            failed: ["two".to_owned()].into(),
            targets: [words(&["--test", "life"]), words(&["--lib"])].into(),
        };
        assert_eq!(said, expected);
    }
}
