//! Why a congestion control is chosen, in words.

use pepd_model::control_choice::Why;

use crate::ui::format;

/// Says why, with the figures.
pub(super) fn why(why: Why) -> String {
    let (share, time, rate) = (format::permille, format::seconds, format::rate);
    match why {
        Why::New => "nothing is known yet".to_owned(),
        Why::Known => "it was so before pepd was started anew".to_owned(),
        Why::Clean { loss } => format!("hardly anything is lost: {} was sent again", share(loss)),
        Why::Queue { loss, added } => format!(
            "{} was sent again while round trips were {} longer than at the least: these losses are congestion",
            share(loss),
            time(added)
        ),
        Why::NoQueue { loss, added } => format!(
            "{} was sent again while round trips were no more than {} longer than at the least: these losses are no \
             congestion",
            share(loss),
            time(added)
        ),
        Why::Others => "others send over the same link".to_owned(),
        Why::NoBetter {
            tried,
            before,
            after,
        } => format!(
            "{} delivered {}, where it had been {}: it makes no difference",
            tried.name(),
            rate(after),
            rate(before)
        ),
        Why::Gone { chosen } => format!("{} cannot be had any more", chosen.name()),
    }
}

#[cfg(test)]
mod tests {
    use pepd_model::control_choice::Chosen;

    use super::*;

    #[test]
    fn figures_are_in_it() {
        let found = Why::NoQueue {
            loss: 0.019,
            added: 0.003,
        };
        assert_eq!(
            why(found),
            "1.9 % was sent again while round trips were no more than 3.00 ms longer than at the least: these losses \
             are no congestion"
        );
        let tried = Why::NoBetter {
            tried: Chosen::Bbr,
            before: 9e6,
            after: 9.5e6,
        };
        assert_eq!(
            why(tried),
            "bbr delivered 9.50 Mbit/s, where it had been 9.00 Mbit/s: it makes no difference"
        );
    }
}
