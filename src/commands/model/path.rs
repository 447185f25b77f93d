//! Where on a path of several hops boxes are worth most.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;

use pepd_model::law::{Control, Leg};
use pepd_model::placement::{Placement, placements};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use super::figure::{self, Chart};
use crate::cli::PathArgs;
use crate::config_file;
use crate::exit::{Failure, Result};
use crate::leg_spec;
use crate::ui::format;
use crate::ui::output::print;
use crate::ui::table;

/// The most hops: what is found out takes the fourth power of them.
const MOST_HOPS: usize = 64;

/// The version of the JSON. It changes when something is removed or means something else.
const SCHEMA: u32 = 1;

/// A path as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// How each leg is sent.
    control: Option<Quoted>,
    /// What each leg's ends may have under way.
    window: Option<Quoted>,
    /// The most boxes.
    boxes: Option<Boxes>,
    #[serde(default)]
    hop: Vec<Hop>,
}

/// A hop: nobody can put a box inside it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hop {
    name: Quoted,
    rtt: Quoted,
    loss: Option<Quoted>,
    rate: Option<Quoted>,
}

/// What stands in quotes.
#[derive(Debug)]
struct Quoted(String);

impl Deref for Quoted {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Quoted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quoted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "text in quotes, as in rtt = \"20ms\", loss = \"1%\" or rate = \"50Mbit\"",
                )
            }

            fn visit_str<E>(self, text: &str) -> std::result::Result<Quoted, E> {
                Ok(Quoted(text.to_owned()))
            }
        }
        from.deserialize_str(Text)
    }
}

/// How many boxes there are at most.
#[derive(Clone, Copy, Debug)]
struct Boxes(usize);

impl<'de> Deserialize<'de> for Boxes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Boxes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of boxes, such as boxes = 2")
            }

            fn visit_i64<E: Error>(self, count: i64) -> std::result::Result<Boxes, E> {
                let wrong = || E::invalid_value(Unexpected::Signed(count), &self);
                usize::try_from(count).map(Boxes).map_err(|_| wrong())
            }
        }
        from.deserialize_i64(Number)
    }
}

/// The answer; rates in bits per second.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    placements: Vec<Row>,
}

/// What so many boxes are worth.
#[derive(Debug, Serialize)]
struct Row {
    boxes: usize,
    /// The hops that they are behind.
    after: Vec<String>,
    throughput: f64,
    gain: f64,
}

/// Prints the best places for no box, one, and so on.
pub fn path(args: &PathArgs) -> Result {
    let shown = printable(&args.file.display().to_string());
    let text = config_file::text(&args.file).map_err(|error| {
        Failure::configuration(format!(
            "pepd: cannot read {shown}: {error}; name a file of hops, in UTF-8 (docs/model.md has one)"
        ))
    })?;
    let report = report(&text).map_err(|error| {
        let error = printable(error.trim_end());
        Failure::configuration(format!("pepd: {shown}: {error}"))
    })?;
    let text = if args.svg {
        figure::draw(&[chart(&report)])?
    } else if args.json {
        let json = serde_json::to_string_pretty(&report);
        json.map_err(|error| Failure::internal("write JSON", error))? + "\n"
    } else {
        describe(&report)
    };
    print(text.as_bytes())
}

/// Says what is wrong with a file of hops, if anything is.
#[cfg(test)]
pub fn check(text: &str) -> std::result::Result<(), String> {
    report(text).map(drop)
}

/// Gives what quotes somebody's file without what a terminal would do something by.
fn printable(text: &str) -> String {
    let quoted = |c: char| match c.is_control() && c != '\n' {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    text.chars().map(quoted).collect()
}

/// Makes a leg of each hop.
fn legs(file: &File) -> std::result::Result<Vec<Leg>, String> {
    let control = file.control.as_deref();
    let control = control.map_or(Ok(Control::default()), leg_spec::control)?;
    let window = file.window.as_deref().map(leg_spec::window).transpose()?;
    let leg = |hop: &Hop| {
        let named = |error: String| format!("hop {}: {error}", &*hop.name);
        let loss = hop.loss.as_deref().map(leg_spec::loss).transpose();
        let loss = loss.map_err(named)?;
        let rate = hop.rate.as_deref().map(leg_spec::rate).transpose();
        let rate = rate.map_err(named)?;
        Ok::<_, String>(Leg {
            loss: loss.unwrap_or_default(),
            rate: rate.map(leg_spec::packets_a_second),
            window,
            control,
            ..Leg::new(leg_spec::seconds(&hop.rtt).map_err(named)?)
        })
    };
    file.hop.iter().map(leg).collect()
}

fn report(text: &str) -> std::result::Result<Report, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.hop.is_empty() {
        return Err("it has no hop; write [[hop]] with name and rtt for each".to_owned());
    }
    if file.hop.len() > MOST_HOPS {
        let count = file.hop.len();
        return Err(format!(
            "{count} hops: more than {MOST_HOPS} are not looked at; join those that no box could be between"
        ));
    }
    let mut names = HashSet::new();
    for (index, hop) in file.hop.iter().enumerate() {
        if hop.name.trim().is_empty() {
            return Err(format!("hop {}: it has no name; give it one", index + 1));
        }
        if !names.insert(&*hop.name) {
            return Err(format!(
                "hop {}: another one has this name; give each one of its own",
                &*hop.name
            ));
        }
    }
    let hops = legs(&file)?;
    let found = placements(&hops, file.boxes.map_or(hops.len(), |boxes| boxes.0));
    let none = found.first().map_or(0.0, |first| first.throughput);
    if !none.is_finite() || found.is_empty() {
        return Err("nothing bounds the path: give hops a loss or a rate, or a window".to_owned());
    }
    if none <= 0.0 {
        return Err(
            "nothing arrives without a box: as much is lost as is sent, or more than bbr was measured at (20 %)".to_owned(),
        );
    }
    let row = |placement: &Placement| Row {
        boxes: placement.after.len(),
        after: placement
            .after
            .iter()
            .map(|hops| printable(&file.hop[hops - 1].name))
            .collect(),
        throughput: placement.throughput * pepd_model::law::PAYLOAD * 8.0,
        gain: placement.throughput / none,
    };
    Ok(Report {
        schema: SCHEMA,
        placements: found.iter().map(row).collect(),
    })
}

/// Returns the throughput over the number of boxes; what nothing bounds is left out.
fn chart(report: &Report) -> Chart {
    let bounded = || {
        report
            .placements
            .iter()
            .filter(|row| row.throughput.is_finite())
    };
    let place = |row: &Row| {
        let count = u32::try_from(row.boxes).unwrap_or(u32::MAX);
        (f64::from(count), row.throughput)
    };
    Chart {
        title: "Throughput over the boxes, each behind the hops named".to_owned(),
        over: "boxes",
        place: |boxes| format!("{boxes:.0}"),
        is_log: false,
        lines: vec![("with boxes", bounded().map(place).collect())],
        names: bounded().map(|row| row.after.join(", ")).collect(),
        here: None,
    }
}

fn describe(report: &Report) -> String {
    let mut rows = table::table(
        &["BOXES", "BEHIND", "THROUGHPUT", "GAIN"],
        &[0, 2, 3],
        &[1],
        None,
    );
    for row in &report.placements {
        let after = if row.after.is_empty() {
            "–".to_owned()
        } else {
            row.after.join(", ")
        };
        // Where a leg's throughput is bounded by nothing that is known.
        let throughput = if row.throughput.is_finite() {
            format::rate(row.throughput)
        } else {
            "unbounded".to_owned()
        };
        rows.add_row([
            row.boxes.to_string(),
            after,
            throughput,
            format!("{:.2}", row.gain),
        ]);
    }
    table::text(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = "control = \"reno\"\n\
        [[hop]]\nname = \"campus a\"\nrtt = \"2ms\"\nrate = \"100Mbit\"\n\
        [[hop]]\nname = \"satellite\"\nrtt = \"200ms\"\nloss = \"0.001%\"\nrate = \"100Mbit\"\n\
        [[hop]]\nname = \"country\"\nrtt = \"10ms\"\nloss = \"2%\"\nrate = \"100Mbit\"\n";

    #[test]
    fn one_box_goes_to_the_earth_station() {
        let report = report(PAPER).unwrap();
        assert_eq!(report.placements[1].after, ["satellite"]);
        insta::assert_snapshot!(describe(&report));
    }

    #[test]
    fn a_name_does_nothing_to_a_terminal() {
        let report = report(&PAPER.replacen("satellite", "a\\u001b[31m", 1)).unwrap();
        assert_eq!(report.placements[1].after, ["a\\u{1b}[31m"]);
        assert_eq!(printable("x\0\ny"), "x\\0\ny");
    }

    #[test]
    fn a_figure_names_the_places() {
        let svg = figure::draw(&[chart(&report(PAPER).unwrap())]).unwrap();
        assert!(svg.contains("satellite"), "{svg}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |from: &str, to: &str| report(&PAPER.replacen(from, to, 1)).unwrap_err();
        assert!(wrong("2%", "2").contains("hop country: `2` is no loss"));
        assert!(
            wrong("\"2ms\"", "10")
                .contains("integer `10`, expected text in quotes, as in rtt = \"20ms\"")
        );
        let boxes = |count: &str| report(&format!("boxes = {count}\n{PAPER}"));
        for count in ["-1", "1.5", "\"2\"", "99999999999999999999"] {
            let error = boxes(count).unwrap_err();
            assert!(
                error.contains("such as boxes = 2") && error.contains("boxes = "),
                "{error}"
            );
        }
        assert_eq!(boxes("1").unwrap().placements.len(), 2);
        assert!(report("").unwrap_err().contains("no hop; write [[hop]]"));
        assert!(wrong("200ms", "soon").contains("hop satellite: rtt"));
        assert!(wrong("rate", "speed").contains("unknown field `speed`"));
        assert!(wrong("reno", "vegas").contains("reno, cubic"));
        assert!(wrong("2%", "2%+1%").contains("hop country: `2%+1%` has losses of a kind twice"));
        let hop = "[[hop]]\nname = \"a\\u001b[31m\"\nrtt = \"soon\"\n";
        assert!(
            report(&(PAPER.to_owned() + hop + hop))
                .unwrap_err()
                .contains("another one has")
        );
        assert!(wrong("satellite", " ").contains("hop 2: it has no name"));
        let long = PAPER.to_owned() + &hop.repeat(62);
        assert!(report(&long).unwrap_err().contains("65 hops"));
        let nothing = PAPER.replacen("reno", "bbr", 1).replacen("2%", "30%", 1);
        assert!(report(&nothing).unwrap_err().contains("nothing arrives"));
    }
}
