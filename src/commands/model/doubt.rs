//! What was measured on too few segments to be a figure.

use pepd_model::law::{Confidence, Leg, Loss, PAYLOAD};
use pepd_model::predict::{Effort, Path, Prediction};
use serde::Serialize;

/// The fewest segments sent again of which the share is a figure: chance alone has them 30 % off in one of twenty cases,
/// and the rate that goes with the root of them 15 %.
const FEWEST_RESENT: f64 = 50.0;

/// A loss of which no more is known than that it is below this is not known at all, and bbr was not measured beyond.
const MOST: f64 = 0.2;

/// The segments within which a smoothed round trip has a say in it of the first one, the handshake's: eight times the
/// eight that it is smoothed over (RFC 6298).
const FEWEST_SAMPLES: f64 = 64.0;

/// By what part of it a throughput may be another one, where losses are others, and is a figure still.
const SAME: f64 = 0.1;

/// What a leg had sent when it was measured, in full segments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    segments: f64,
    resent: f64,
}

impl Sent {
    /// Takes bytes, and the share of them that was sent again.
    pub fn new(bytes: u64, share: f64) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a figure of a model")]
        let segments = bytes as f64 / PAYLOAD;
        Self {
            segments,
            resent: segments * share,
        }
    }

    /// Returns the loss that there is at most, three standard deviations beyond what was seen, and of none three segments
    /// (as the advice of `pepd status` has it).
    fn most(self) -> f64 {
        let resent = self.resent;
        (resent + 3.0 * resent.sqrt() + 3.0) / self.segments.max(1.0)
    }

    /// Returns whether the share that was sent again is a figure.
    fn is_enough(self) -> bool {
        self.resent >= FEWEST_RESENT
    }

    /// Says that nothing is known, if so.
    pub fn refusal(self, leg: &str) -> Option<String> {
        (!self.is_enough() && self.most() > MOST).then(|| {
            format!(
                "leg {leg}: of what its live connections have sent {} were sent again, which says nothing of its losses: ask again \
                 while they send more",
                self.words()
            )
        })
    }

    fn words(self) -> String {
        let count = |segments: f64| format!("{segments:.0}");
        format!(
            "{} of {} segments",
            count(self.resent),
            count(self.segments)
        )
    }
}

/// Refuses a path that nothing comes through, with which nothing can be compared.
pub fn arrives(found: &Prediction) -> Result<(), String> {
    if found.throughput > 0.0 && found.unsplit.throughput > 0.0 {
        return Ok(());
    }
    Err(
        "nothing arrives: the legs lose as much as their links carry, or more than bbr was measured at (20 %); give \
         them less loss, or more --rate"
            .to_owned(),
    )
}

/// What is not known of a leg that is measured; the loss from 0 to 1.
#[derive(Debug, Serialize)]
pub struct Doubt {
    leg: &'static str,
    segments: f64,
    resent: f64,
    loss_at_most: f64,
    /// Whether the round trip is about the first one's, too.
    rtt_is_early: bool,
    #[serde(skip)]
    words: String,
}

impl Doubt {
    /// Why the leg is not to be trusted.
    pub fn reason(&self) -> String {
        format!("{} were sent again: too few to know its losses", self.words)
    }

    /// Says what is not known.
    pub fn sentence(&self) -> String {
        let rtt = match self.rtt_is_early {
            true => " Its round trip is little more than that of the handshakes.",
            false => "",
        };
        format!(
            "The loss of the leg --{} is not known: {} were sent again, so that it is {} at most.{rtt}",
            self.leg,
            self.words,
            percent(self.loss_at_most)
        )
    }

    /// Returns whether it is about this leg.
    pub fn is_of(&self, leg: &str) -> bool {
        self.leg == leg
    }
}

/// Writes a loss with a digit that is not 0.
fn percent(share: f64) -> String {
    match share * 100.0 {
        percent @ 0.1.. => format!("{percent:.1} %"),
        percent @ 0.001.. => format!("{percent:.3} %"),
        _ => "less than 0.001 %".to_owned(),
    }
}

/// What is carried if as much is lost as may be; rates in packets a second.
#[derive(Clone, Copy, Debug)]
pub struct AtWorst {
    /// With a box.
    pub throughput: f64,
    /// Without.
    pub unsplit: f64,
}

/// Returns what is in doubt of a path, and what it carries at worst; nothing where that is about what was found.
pub fn doubts(
    path: &Path,
    sent: [Option<Sent>; 2],
    found: &Prediction,
) -> Option<(Vec<Doubt>, AtWorst)> {
    let mut worst = path.clone();
    let mut doubts = Vec::new();
    for ((name, leg), sent) in ["in", "out"].into_iter().zip(&mut worst.legs).zip(sent) {
        if let Some(sent) = sent.filter(|sent| !sent.is_enough()) {
            *leg = Leg {
                loss: Loss::per_packet(sent.most().min(MOST)),
                ..*leg
            };
            doubts.push(Doubt {
                leg: name,
                segments: sent.segments.round(),
                resent: sent.resent.round(),
                loss_at_most: leg.loss.per_packet,
                rtt_is_early: sent.segments < FEWEST_SAMPLES,
                words: sent.words(),
            });
        }
    }
    if doubts.is_empty() {
        return None;
    }
    let worst = worst.predict(Effort::default())?;
    let at_worst = AtWorst {
        throughput: worst.throughput.min(found.throughput),
        unsplit: worst.unsplit.throughput.min(found.unsplit.throughput),
    };
    let is_same = |worst: f64, found: f64| worst >= (1.0 - SAME) * found;
    let is_known = is_same(at_worst.throughput, found.throughput)
        && is_same(at_worst.unsplit, found.unsplit.throughput)
        && doubts.iter().all(|doubt| !doubt.rtt_is_early);
    (!is_known).then_some((doubts, at_worst))
}

/// What trust there is where something is in doubt.
pub const TRUST: Confidence = Confidence::Low;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rate: f64) -> Path {
        let leg = |rtt, loss| Leg {
            rate: Some(rate),
            loss: Loss::per_packet(loss),
            ..Leg::new(rtt)
        };
        Path::new(&[leg(0.01, 0.0), leg(0.1, 0.01)])
    }

    fn asked(path: &Path, sent: [Option<Sent>; 2]) -> Option<(Vec<Doubt>, AtWorst)> {
        doubts(path, sent, &path.predict(Effort::default()).unwrap())
    }

    fn segments(segments: u64, share: f64) -> Option<Sent> {
        Some(Sent::new(segments * 1448, share))
    }

    #[test]
    fn few_segments_are_no_figure_and_many_are() {
        let path = path(5000.0);
        let (found, worst) = asked(&path, [None, segments(1000, 0.01)]).unwrap();
        assert!(found.len() == 1 && found[0].is_of("out"));
        // 10 of 1,000, and three deviations of 3.2, and three.
        assert!((found[0].loss_at_most - 0.0225).abs() < 1e-4, "{found:?}");
        assert!(worst.throughput < 0.8 * path.predict(Effort::default()).unwrap().throughput);
        assert!(found[0].sentence().contains("10 of 1000 segments"));
        assert!(asked(&path, [None, segments(10_000, 0.01)]).is_none());
        assert!(asked(&path, [None, None]).is_none());
    }

    /// The link is the same slow one whether three in a million are lost or none.
    #[test]
    fn what_makes_no_difference_is_no_doubt() {
        let path = path(20.0);
        assert!(asked(&path, [segments(1_000_000, 0.0), segments(1_000_000, 0.01)]).is_none());
        // But for the round trip.
        let (found, _) = asked(&path, [segments(50, 0.0), None]).unwrap();
        assert!(found[0].sentence().contains("handshakes"));
    }

    #[test]
    fn next_to_nothing_is_refused() {
        let refusal = |sent: Option<Sent>| sent.unwrap().refusal("lan");
        let text = refusal(segments(10, 0.0)).unwrap();
        assert!(text.contains("leg lan: of what"), "{text}");
        assert!(text.contains("0 of 10 segments"), "{text}");
        assert!(refusal(segments(0, 0.0)).is_some());
        assert!(refusal(segments(20, 0.0)).is_none());
        // Much is lost, and that is known.
        assert!(refusal(segments(1000, 0.3)).is_none());
    }
}
