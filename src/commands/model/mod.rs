//! `pepd model`: what theory expects of a sender and its path, a file per question.

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
                (None, Some(coming), Some(leaving)) => [coming.0, leaving.0],
                // The command line is refused before.
                (None, ..) => {
                    return Err(Failure::configuration(
                        "pepd: a model needs --in and --out, or --of".to_owned(),
                    ));
                }
            };
            print(split::answer(legs, args)?.as_bytes())
        }
    }
}
