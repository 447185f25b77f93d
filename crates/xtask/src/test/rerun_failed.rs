//! Tests that failed are run again, each by itself: hundreds of tests with real programs share a
//! machine that may do other work, and one of them may meet what no test foresaw. Such a test is
//! named at the end, because it needs to be fixed; but only what fails by itself ends the run.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

/// The number of times in a row that a test that failed must pass by itself.
const TIMES: usize = 3;

/// The number of tests of one run that may be unsteady: where more fail, it is not by chance.
const MOST: usize = 3;

/// Runs each of the tests that failed again, by `run`, which tells whether the test ran and passed.
///
/// # Errors
/// When one does not pass each time, or too many failed, or something failed that is no test.
pub fn rerun_failed(
    failed: &BTreeSet<String>,
    mut run: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    ensure!(!failed.is_empty(), "something failed that is no test");
    ensure!(failed.len() <= MOST, "{} tests failed", failed.len());
    for name in failed {
        for time in 1..=TIMES {
            println!("Failed, and run again by itself ({time} of {TIMES}): {name}");
            ensure!(run(name)?, "{name} does not pass by itself");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::rerun_failed;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_passes_three_times_is_forgiven() {
        let mut runs = Vec::new();
        let passes = |name: &str| {
            runs.push(name.to_owned());
            Ok(true)
        };
        rerun_failed(&names(&["a", "b"]), passes).unwrap();
        assert_eq!(runs, ["a", "a", "a", "b", "b", "b"]);
    }

    #[test]
    fn what_fails_again_is_not() {
        let mut runs = 0;
        let the_third_fails = |_: &str| {
            runs += 1;
            Ok(runs < 3)
        };
        let error = rerun_failed(&names(&["a"]), the_third_fails).unwrap_err();
        assert_eq!(error.to_string(), "a does not pass by itself");
    }

    #[test]
    fn many_failures_are_not_and_no_test_neither() {
        assert!(rerun_failed(&names(&["a", "b", "c"]), |_| Ok(true)).is_ok());
        assert!(rerun_failed(&names(&["a", "b", "c", "d"]), |_| Ok(true)).is_err());
        assert!(rerun_failed(&names(&[]), |_| Ok(true)).is_err());
    }
}
