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
            let legs = match (&args.of, args.leg_in, args.leg_out) {
                (Some(pair), ..) => measured::legs(&args.daemon, pair)?,
                (None, Some(coming), Some(leaving)) => [coming.0, leaving.0].map(|leg| (leg, None)),
                (None, ..) => {
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

    #[test]
    fn without_legs_it_is_said_what_is_wanted() {
        let Command::Model(args) = Cli::try_parse_from(["pepd", "model"]).unwrap().command else {
            panic!("another command");
        };
        let error = model(&args).unwrap_err().to_string();
        assert!(
            error.contains("--in LEG") && error.contains("--of A:B"),
            "{error}"
        );
    }
}
