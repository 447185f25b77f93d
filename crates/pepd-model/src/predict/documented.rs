//! What docs/model.md has beside what pepd carried: the page's own rows, computed again.

use std::sync::LazyLock;

use super::{Effort, Path};
use crate::law::{Control, Leg, Loss, PAYLOAD};

const PAGE: &str = include_str!("../../../../docs/model.md");

/// What is printed with two digits behind the point is so far from it at most, Mbit/s.
const ROUNDED: f64 = 0.005;

/// A row's setting by one control, with what the page has of it; Mbit/s, and per cent.
#[derive(Debug)]
struct Row {
    name: String,
    law: f64,
    /// What the crate has.
    computed: f64,
    measured: f64,
    off: f64,
}

/// From where to where what is off may lie, by what is printed.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f64,
    high: f64,
}

impl Row {
    fn new(far: &str, buffer: bool, control: Control, [law, measured, off]: [&str; 3]) -> Self {
        Self {
            name: format!("{}, {far}", control.name()),
            law: number(law),
            computed: computed(far, buffer, control),
            measured: number(measured),
            off: number(off.trim_end_matches('%')),
        }
    }

    /// How far what the page has is off, without a sign: 0 to 1.
    fn error(&self) -> f64 {
        (self.law / self.measured - 1.0).abs()
    }

    /// How far the crate is off, per cent, wherever what was measured lies within its digits.
    fn off(&self) -> Range {
        let of = |measured: f64| 100.0 * (self.computed / measured - 1.0);
        Range {
            low: of(self.measured + ROUNDED),
            high: of(self.measured - ROUNDED),
        }
    }

    /// The same without a sign.
    fn distance(&self) -> Range {
        let Range { low, high } = self.off();
        let least = if low <= 0.0 && high >= 0.0 {
            0.0
        } else {
            low.abs().min(high.abs())
        };
        Range {
            low: least,
            high: low.abs().max(high.abs()),
        }
    }
}

/// Gives what the crate expects of a setting, Mbit/s: `50 ms, 0.5 %`, and `B = 10` if there is a buffer.
fn computed(far: &str, buffer: bool, control: Control) -> f64 {
    let mut words = far.split(", ");
    let mut value = |unit: &str| number(words.next().unwrap().trim_end_matches(unit));
    let (rtt, loss) = (value("ms") / 1e3, value("%") / 1e2);
    // crates/pepd-lab/data/model.toml: 50 Mbit/s, but 2 Mbit/s where the rate is fixed; 1,500 bytes on the wire.
    let packets = |mbit: f64| Some(mbit * 1e6 / 12_000.0);
    let near = Leg {
        rate: packets(50.0),
        ..Leg::new(0.04)
    };
    let far = Leg {
        loss: Loss::per_packet(loss),
        rate: packets(if control == Control::FixedRate {
            2.0
        } else {
            50.0
        }),
        control,
        ..Leg::new(rtt)
    };
    let path = Path {
        buffer: if buffer { 10.0 } else { f64::INFINITY },
        ..Path::new(&[near, far])
    };
    path.predict(Effort::default()).unwrap().throughput * PAYLOAD * 8.0 / 1e6
}

fn number(text: &str) -> f64 {
    let text = text.trim().replace('−', "-");
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// The cells of the rows of the table below a line that begins so.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let lines = PAGE
        .lines()
        .skip_while(|line| !line.starts_with(head))
        .skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    rows.map(cells).collect()
}

/// The rows with Reno, CUBIC and a fixed rate.
static ROWS: LazyLock<[Vec<Row>; 3]> = LazyLock::new(rows);

fn rows() -> [Vec<Row>; 3] {
    let [mut reno, mut cubic, mut fixed] = [const { Vec::new() }; 3];
    for cells in table("| far leg | reno: law") {
        let &[far, first, second, third, fourth, fifth, sixth] = &cells[..] else {
            panic!("{cells:?}");
        };
        let buffer = far.ends_with("B = 10");
        reno.push(Row::new(far, buffer, Control::Reno, [first, second, third]));
        cubic.push(Row::new(
            far,
            buffer,
            Control::Cubic,
            [fourth, fifth, sixth],
        ));
    }
    for cells in table("| far leg | law") {
        let &[far, law, without, off, with, off_with] = &cells[..] else {
            panic!("{cells:?}");
        };
        for (buffer, measured, off) in [(false, without, off), (true, with, off_with)] {
            fixed.push(Row::new(
                far,
                buffer,
                Control::FixedRate,
                [law, measured, off],
            ));
        }
    }
    [reno, cubic, fixed]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[half - 1], values[half]),
        _ => values[half],
    }
}

/// What follows the words on the page.
fn behind(words: &str) -> &'static str {
    let found = PAGE.split_once(words);
    found.unwrap_or_else(|| panic!("no {words:?}")).1
}

/// The per cent that a text begins with.
fn percent(text: &str) -> f64 {
    number(text.split_once('%').unwrap().0)
}

/// Says whether a number that is rounded to so much can lie in the range.
fn is_within(said: f64, rounded: f64, range: Range) -> bool {
    (range.low - rounded..=range.high + rounded).contains(&said)
}

/// Gives something of how far rows are off, wherever what was measured lies within its digits.
fn range(rows: &[&Row], of: fn(Vec<f64>) -> f64) -> Range {
    let distances = rows.iter().map(|row| row.distance());
    let (low, high) = distances.map(|it| (it.low, it.high)).unzip();
    Range {
        low: of(low),
        high: of(high),
    }
}

#[test]
fn the_page_has_what_the_crate_computes() {
    assert_eq!(ROWS.each_ref().map(Vec::len), [12; 3]);
    for row in ROWS.iter().flatten() {
        let name = &row.name;
        assert!(
            (row.law - row.computed).abs() <= ROUNDED + 1e-9,
            "{name}: {row:?}"
        );
        assert!(is_within(row.off, 0.5, row.off()), "{name}: {row:?}");
    }
}

#[test]
fn reno_and_a_fixed_rate_are_within_a_tenth_in_the_median() {
    let [reno, _, fixed] = &*ROWS;
    for rows in [reno, fixed] {
        let median = median(rows.iter().map(Row::error).collect());
        assert!(median <= 0.1, "{median}: {rows:?}");
    }
}

#[test]
fn the_page_has_the_medians_and_the_worst() {
    let worst = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    let lines = [
        ("Reno: median", 0.5),
        ("CUBIC: median", 0.5),
        ("\nMedian", 0.05),
    ];
    for (rows, (words, rounded)) in ROWS.iter().zip(lines) {
        let rows: Vec<_> = rows.iter().collect();
        let said = behind(words);
        let found = range(&rows, median);
        assert!(
            is_within(percent(said), rounded, found),
            "{words}: {found:?}"
        );
        let said = percent(said.split_once("worst").unwrap().1);
        let found = range(&rows, worst);
        assert!(
            is_within(said, rounded, found),
            "{words}: {said}, {found:?}"
        );
    }
    let all: Vec<_> = ROWS.iter().flatten().collect();
    let found = range(&all, median);
    let said = percent(behind("of all 36 settings"));
    assert!(is_within(said, 0.5, found), "{said}, {found:?}");
}
