//! A leg as people write it: `rtt=20ms,loss=1%,rate=50Mbit,window=4MiB,control=cubic`.

use std::str::FromStr;

use pepd_config::{Rate, Size};
use pepd_model::law::{Control, Leg, Loss, PAYLOAD, WIRE};

/// A leg as it is written, before what holds for both is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LegSpec(pub Leg);

impl FromStr for LegSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rtt = None;
        let mut leg = Leg::new(0.0);
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` is no KEY=VALUE, such as rtt=20ms"))?;
            match key.trim() {
                "rtt" => rtt = Some(seconds(value)?),
                "loss" => leg.loss = loss(value)?,
                "rate" => leg.rate = Some(packets_a_second(rate(value)?)),
                "window" => leg.window = Some(packets(size(value)?)),
                "control" => leg.control = control(value)?,
                "per-ack" => leg.per_ack = per_ack(value)?,
                key => {
                    return Err(format!(
                        "a leg has no `{key}`; it has rtt, loss, rate, window, control and per-ack"
                    ));
                }
            }
        }
        let rtt = rtt.ok_or("a leg needs its round trip, such as rtt=20ms")?;
        Ok(Self(Leg { rtt, ..leg }))
    }
}

/// Reads a round trip, in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let time = humantime::parse_duration(text).map_err(|error| format!("rtt: {error}"))?;
    if time.is_zero() {
        return Err("a round trip takes some time, such as 20ms".to_owned());
    }
    Ok(time.as_secs_f64())
}

/// Reads losses: `1%`, `0.4/s`, or both with a plus.
pub fn loss(text: &str) -> Result<Loss, String> {
    let mut loss = Loss::default();
    for part in text.split('+') {
        let number = |text: &str| {
            let number: Option<f64> = text.trim().parse().ok();
            number.filter(|number| number.is_finite() && *number >= 0.0)
        };
        let wrong = || format!("`{part}` is no loss; write one as 1% or 0.4/s");
        if let Some(rate) = part.trim().strip_suffix("/s") {
            loss.per_second = number(rate).ok_or_else(wrong)?;
        } else {
            let share = part.trim().strip_suffix('%').ok_or_else(wrong)?;
            let share = number(share).filter(|share| *share < 100.0);
            loss.per_packet = share.ok_or_else(wrong)? / 100.0;
        }
    }
    Ok(loss)
}

/// Reads a share above nothing and below all, such as `95%`, as a number from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').and_then(|text| text.parse().ok());
    let within = number.filter(|percent| *percent > 0.0 && *percent < 100.0);
    within
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("`{text}` is no share between 0% and 100%, such as 95%"))
}

/// Reads a rate.
pub fn rate(text: &str) -> Result<Rate, String> {
    let rate = pepd_config::parse_rate(text).filter(|rate| rate.0 > 0);
    rate.ok_or_else(|| format!("`{text}` is no rate; write one as 50Mbit"))
}

/// Reads a size.
pub fn size(text: &str) -> Result<Size, String> {
    let size = pepd_config::parse_size(text).filter(|size| size.0 > 0);
    size.ok_or_else(|| format!("`{text}` is no size; write one as 256KiB"))
}

/// Reads a congestion control of which something is known.
pub fn control(text: &str) -> Result<Control, String> {
    let known = Control::ALL.iter().find(|(_, name)| *name == text);
    known.map(|(control, _)| *control).ok_or_else(|| {
        let names = Control::ALL.map(|(_, name)| name).join(", ");
        format!("of `{text}` nothing is known; of these there is: {names}")
    })
}

fn per_ack(text: &str) -> Result<f64, String> {
    match text {
        "1" => Ok(1.0),
        "2" => Ok(2.0),
        _ => Err("per-ack is 1, or 2 where the sender counts delayed ACKs".to_owned()),
    }
}

/// Gives a link's rate in full packets on the wire, a second.
pub fn packets_a_second(rate: Rate) -> f64 {
    float(rate.0) / (WIRE * 8.0)
}

/// Gives a size in full packets' payload.
pub fn packets(size: Size) -> f64 {
    float(size.0) / PAYLOAD
}

#[allow(clippy::cast_precision_loss, reason = "a figure of a model")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_leg() {
        let LegSpec(leg) =
            "rtt=20ms,loss=1%+0.4/s,rate=12Mbit,window=1448kB,control=reno,per-ack=2"
                .parse()
                .unwrap();
        assert_eq!(
            leg,
            Leg {
                rtt: 0.02,
                loss: Loss {
                    per_second: 0.4,
                    per_packet: 0.01
                },
                rate: Some(1000.0),
                window: Some(1000.0),
                control: Control::Reno,
                per_ack: 2.0,
            }
        );
    }

    #[rstest]
    #[case("loss=1%", "needs its round trip")]
    #[case("rtt=0s", "takes some time")]
    #[case("rtt=20", "rtt: ")]
    #[case("rtt=20ms,loss=1", "no loss")]
    #[case("rtt=20ms,loss=100%", "no loss")]
    #[case("rtt=20ms,loss=-1/s", "no loss")]
    #[case("rtt=20ms,rate=50", "no rate")]
    #[case("rtt=20ms,window=x", "no size")]
    #[case("rtt=20ms,control=vegas", "reno, cubic, fixed-rate, bbr")]
    #[case("rtt=20ms,delay=3ms", "no `delay`")]
    #[case("rtt", "KEY=VALUE")]
    fn what_is_wrong_is_said(#[case] text: &str, #[case] words: &str) {
        let error = text.parse::<LegSpec>().unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn shares() {
        assert_eq!(share("95%"), Ok(0.95));
        for wrong in ["95", "0%", "100%", "x%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
