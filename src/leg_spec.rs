//! A leg as people write it: `rtt=20ms,loss=1%,rate=50Mbit,window=4MiB,control=cubic`.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use pepd_config::{Rate, Size};
use pepd_model::hold_acks::linux::RTO_MAX;
use pepd_model::law::{Control, Leg, Loss, PAYLOAD, WIRE};

/// What a round trip can be: beyond these there is no path.
const SHORTEST: Duration = Duration::from_micros(1);
const LONGEST: Duration = Duration::from_secs(10);

/// What a link can carry, and what can be held or under way: beyond these there is nothing.
const RATES: RangeInclusive<Rate> = Rate(1)..=Rate(10_000_000_000_000);
const SIZES: RangeInclusive<Size> = Size(1)..=Size(1 << 40);

/// The least losses of packets, as a share, and a second: less is none, and no law says anything of it.
const LEAST_OF_PACKETS: f64 = 1e-12;
const LEAST_A_SECOND: f64 = 1e-9;

/// The most losses a second: fading has one now and then, and what loses more loses packets.
const MOST_A_SECOND: f64 = 100.0;

/// The most that is lost of packets, as a share: the laws were never held against more.
const MOST_OF_PACKETS: f64 = 0.5;

/// A leg as it is written, before what holds for both is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LegSpec(pub Leg);

impl FromStr for LegSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rtt = None;
        let mut leg = Leg::new(0.0);
        let mut keys = Vec::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` is no KEY=VALUE, such as rtt=20ms"))?;
            let key = key.trim();
            if keys.contains(&key) {
                return Err(format!("`{key}` is given twice: say it once"));
            }
            keys.push(key);
            match key {
                "rtt" => rtt = Some(seconds(value)?),
                "loss" => leg.loss = loss(value)?,
                "rate" => leg.rate = Some(packets_a_second(rate(value)?)),
                "window" => leg.window = Some(window(value)?),
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
    let time = round_trip(text).map_err(|error| format!("rtt: {error}"))?;
    Ok(time.as_secs_f64())
}

/// Reads a round trip.
pub fn round_trip(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if !(SHORTEST..=LONGEST).contains(&time) {
        return Err(format!(
            "`{text}` is no round trip: one takes from 1us to 10s, such as 20ms"
        ));
    }
    Ok(time)
}

/// Reads how much a round trip deviates.
pub fn deviation(text: &str) -> Result<Duration, String> {
    let within = time(text).map(|time| (time <= LONGEST).then_some(time))?;
    within.ok_or_else(|| format!("`{text}` is too much: a round trip deviates by 10s at most"))
}

/// Reads for how long an ACK has been held.
pub fn held(text: &str) -> Result<Duration, String> {
    let within = time(text).map(|time| (time.as_secs_f64() <= RTO_MAX).then_some(time))?;
    within.ok_or_else(|| {
        format!("`{text}` is too long: a sender waits for an ACK for two minutes at most")
    })
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        format!("`{text}` is no time; write a positive one in digits and a unit, such as 20ms")
    })
}

/// Reads losses: `1%`, `0.4/s`, or both with a plus.
pub fn loss(text: &str) -> Result<Loss, String> {
    let mut loss = Loss::default();
    let mut kinds = Vec::new();
    for part in text.split('+') {
        let number = |text: &str| {
            let number: Option<f64> = text.trim().parse().ok();
            number.filter(|number| number.is_finite() && *number >= 0.0)
        };
        let wrong = || format!("`{part}` is no loss; write one as 1% or 0.4/s");
        if part.trim().is_empty() && part != text {
            return Err(format!(
                "`{text}` has nothing on one side of a plus: write 1% or 1%+0.4/s"
            ));
        }
        let is_over_time = part.trim().ends_with("/s");
        if kinds.contains(&is_over_time) {
            return Err(format!(
                "`{text}` has losses of a kind twice: add them up, as 1% or 0.4/s or 1%+0.4/s"
            ));
        }
        kinds.push(is_over_time);
        if let Some(rate) = part.trim().strip_suffix("/s") {
            loss.per_second = number(rate).ok_or_else(wrong)?;
            if loss.per_second > 0.0 && loss.per_second < LEAST_A_SECOND {
                return Err(less_than_any(part));
            }
            if loss.per_second > MOST_A_SECOND {
                return Err(format!(
                    "`{part}` is more than {MOST_A_SECOND} losses a second, which are losses of packets: write them as 1%"
                ));
            }
        } else {
            let share = part.trim().strip_suffix('%').ok_or_else(wrong)?;
            loss.per_packet = number(share).ok_or_else(wrong)? / 100.0;
            if loss.per_packet > 0.0 && loss.per_packet < LEAST_OF_PACKETS {
                return Err(less_than_any(part));
            }
            if loss.per_packet > MOST_OF_PACKETS {
                return Err(format!(
                    "`{part}` is more than half of all packets, of which no law says anything: say less"
                ));
            }
        }
    }
    Ok(loss)
}

fn less_than_any(part: &str) -> String {
    format!(
        "`{part}` is less than is ever seen (0.0000000001% of packets, one in thirty years): leave it out"
    )
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
    let rate = pepd_config::parse_rate(text).filter(|rate| RATES.contains(rate));
    rate.ok_or_else(|| format!("`{text}` is no rate from 1bit to 10Tbit; write one as 50Mbit"))
}

/// Reads a size.
pub fn size(text: &str) -> Result<Size, String> {
    let size = pepd_config::parse_size(text).filter(|size| SIZES.contains(size));
    size.ok_or_else(|| format!("`{text}` is no size from 1B to 1TiB; write one as 256KiB"))
}

/// Reads what may be under way, in packets.
pub fn window(text: &str) -> Result<f64, String> {
    let window = packets(size(text)?);
    let holds_one = (window >= 1.0).then_some(window);
    holds_one.ok_or_else(|| {
        format!("`{text}` is no window: it holds a packet at least, {PAYLOAD} bytes")
    })
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
    #[case("rtt=0s", "rtt: `0s` is no round trip: one takes from 1us to 10s")]
    #[case("rtt=20", "rtt: `20` is no time; ")]
    #[case("rtt=20ms,loss=1", "no loss")]
    #[case("rtt=20ms,loss=100%", "more than half")]
    #[case("rtt=20ms,loss=51%", "more than half")]
    #[case("rtt=20ms,loss=-1/s", "no loss")]
    #[case("rtt=20ms,rate=50", "no rate")]
    #[case("rtt=20ms,window=x", "no size")]
    #[case("rtt=20ms,window=1447B", "a packet at least")]
    #[case("rtt=20ms,rtt=30ms", "`rtt` is given twice")]
    #[case("rtt=20ms,loss=1%, loss=0.4/s", "`loss` is given twice")]
    #[case("rtt=20ms,loss=1%+2%", "of a kind twice")]
    #[case("rtt=20ms,loss=1%+", "`1%+` has nothing on one side of a plus")]
    #[case("rtt=20ms,loss=+1%", "`+1%` has nothing on one side of a plus")]
    #[case("rtt=20ms,loss=100000/s", "write them as 1%")]
    #[case("rtt=20ms,loss=1e999/s", "no loss")]
    #[case("rtt=20ms,loss=nan%", "no loss")]
    #[case("rtt=20ms,loss=", "no loss")]
    #[case("rtt=1ns", "from 1us to 10s")]
    #[case("rtt=2h", "from 1us to 10s")]
    #[case("rtt=", "rtt: `` is no time; ")]
    #[case("rtt=-1ms", "write a positive one in digits and a unit, such as 20ms")]
    #[case("rtt=nan", "`nan` is no time; ")]
    #[case("rtt=1e3ms", "`1e3ms` is no time; ")]
    #[case("rtt=20ms,rate=0bit", "no rate")]
    #[case("rtt=20ms,rate=11Tbit", "no rate from 1bit to 10Tbit")]
    #[case("rtt=20ms,rate=99999999999Tbit", "no rate from 1bit to 10Tbit")]
    #[case("rtt=20ms,window=2TiB", "no size from 1B to 1TiB")]
    #[case("rtt=20ms,per-ack=0", "per-ack is 1")]
    #[case("rtt=20ms,mss=0", "no `mss`")]
    #[case("rtt=20ms,", "KEY=VALUE")]
    #[case("", "KEY=VALUE")]
    #[case("rtt=20ms,control=vegas", "reno, cubic, fixed-rate, bbr")]
    #[case("rtt=20ms,delay=3ms", "no `delay`")]
    #[case("rtt", "KEY=VALUE")]
    fn what_is_wrong_is_said(#[case] text: &str, #[case] words: &str) {
        let error = text.parse::<LegSpec>().unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn times() {
        assert_eq!(round_trip("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(held("120s"), Ok(Duration::from_mins(2)));
        assert!(held("121s").unwrap_err().contains("two minutes at most"));
        assert!(held("-1s").unwrap_err().contains("`-1s` is no time"));
        assert!(deviation("11s").unwrap_err().contains("10s at most"));
    }

    #[test]
    fn shares() {
        assert_eq!(share("95%"), Ok(0.95));
        for wrong in [
            "95", "0%", "100%", "x%", "-5%", "nan%", "inf%", "1e999%", "%", "",
        ] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
