//! `pepd model`: what theory expects of a sender and its path, a file per question.

mod doubt;
mod figure;
mod hold_acks;
mod measured;
pub mod path;
mod split;

use crate::cli::{Model, Question};
use crate::exit::{Failure, Result};
use crate::ui::output::print;

/// Answers the question that is asked.
pub fn model(args: &Model) -> Result {
    match &args.question {
        Some(Question::HoldAcks(args)) => hold_acks::hold_acks(args),
        Some(Question::Path(args)) => path::path(args),
        None => {
            if args.of.is_none() && (args.daemon.config.is_some() || args.daemon.socket.is_some()) {
                return Err(Failure::usage(
                    "-c and --socket say which daemon measures --of A:B: leave them out, or give that",
                ));
            }
            let given = [args.leg_in, args.leg_out].map(|leg| leg.map(|it| it.0));
            let legs = match (&args.of, given) {
                (None, [Some(coming), Some(leaving)]) => [coming, leaving].map(|leg| (leg, None)),
                (Some(_), [Some(_), Some(_)]) => {
                    return Err(Failure::usage(
                        "--in and --out are both legs: there is none left to take from what is measured; leave --of out",
                    ));
                }
                (Some(pair), given) => measured::legs(&args.daemon, pair, given)?,
                (None, _) => {
                    return Err(Failure::usage(
                        "a model needs two legs, --in LEG and --out LEG, such as rtt=20ms,loss=1%, or --of A:B for \
                         those that a running daemon measures; `pepd model --help` has more",
                    ));
                }
            };
            print(split::answer(legs, args)?.as_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn refused(words: &[&str]) -> String {
        let words = [&["pepd", "model"], words].concat();
        let Command::Model(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("another command");
        };
        model(&args).unwrap_err().to_string()
    }

    #[test]
    fn without_legs_it_is_said_what_is_wanted() {
        for words in [&[][..], &["--in", "rtt=20ms"], &["--out", "rtt=20ms"]] {
            let error = refused(words);
            assert!(
                error.contains("--in LEG") && error.contains("--of A:B"),
                "{error}"
            );
        }
    }

    #[test]
    fn without_a_pair_no_daemon_is_asked() {
        for daemon in ["-c", "--socket"] {
            let words = ["--in", "rtt=20ms", "--out", "rtt=20ms", daemon, "nowhere"];
            assert!(refused(&words).contains("say which daemon measures --of A:B"));
        }
    }

    #[test]
    fn with_both_legs_none_is_left_to_be_measured() {
        let legs = ["--in", "rtt=20ms", "--out", "rtt=20ms", "--of", "a:b"];
        assert!(refused(&legs).contains("leave --of out"));
    }
}
