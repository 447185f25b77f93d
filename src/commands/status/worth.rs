//! What splitting is worth, in `pepd status`.

use pepd_admin::wire::{Compared, GainInterval, Measured, PairWorth, Worth};

use crate::ui::{format, table};

/// Lists how connections that are split compare with some that are not.
pub(super) fn worth(worth: Option<&Worth>, width: Option<u16>) -> String {
    let Some(worth) = worth else {
        return String::new();
    };
    let share = format::percent(worth.unsplit);
    if worth.pairs.is_empty() {
        return format!(
            "what splitting is worth is measured on {share} of connections: none has ended yet\n"
        );
    }
    let header = [
        "SPLIT OR NOT",
        "",
        "SPLIT",
        "N",
        "UNSPLIT",
        "N",
        "FACTOR (95 %)",
    ];
    let mut table = table::table(&header, &[2, 3, 4, 5], &[0, 6], width);
    for pair in &worth.pairs {
        for (at, compared) in pair.compared.iter().enumerate() {
            let name = if at == 0 {
                pair_name(pair)
            } else {
                String::new()
            };
            table.add_row(row(name, compared, worth.fewest));
        }
    }
    let choices = worth.pairs.iter().filter_map(choice);
    table::text(&table) + &choices.collect::<String>()
}

/// Says what becomes of new connections, where that depends on it.
fn choice(pair: &PairWorth) -> Option<String> {
    let choice = pair.choice?;
    let way = match choice.splits {
        true => "splits",
        false => "routes",
    };
    let explores = match choice.explores {
        true => " for now: it is found out on half of them",
        false => "",
    };
    let changes = match choice.changes {
        0 => String::new(),
        1 => " (1 change)".to_owned(),
        changes => format!(" ({} changes)", format::count(changes)),
    };
    Some(format!(
        "{}: auto {way} new connections{explores}{changes}\n",
        pair_name(pair)
    ))
}

fn pair_name(pair: &PairWorth) -> String {
    format!("{} → {}", pair.client_campus, pair.server_campus)
}

fn row(name: String, compared: &Compared, fewest: u64) -> [String; 7] {
    let Compared {
        quantity,
        split,
        unsplit,
        gain,
    } = compared;
    let median = |of: &Measured| match of.median {
        None => "–".to_owned(),
        Some(rate) if quantity == "longer" => format::rate(rate),
        Some(time) => format::seconds(time),
    };
    let verdict = match gain {
        Some(gain) => verdict(gain),
        None => {
            let few = split.connections.min(unsplit.connections);
            format!("not enough yet: {few} of {fewest}")
        }
    };
    [
        name,
        quantity_name(quantity),
        median(split),
        format::count(split.connections),
        median(unsplit),
        format::count(unsplit.connections),
        verdict,
    ]
}

/// Says no more than what the interval says.
fn verdict(gain: &GainInterval) -> String {
    let GainInterval { factor, low, high } = gain;
    let figures = format!("{factor:.2} ({low:.2}–{high:.2})");
    match gain.is_other_than_one() {
        true => figures,
        false => format!("{figures}, maybe the same"),
    }
}

fn quantity_name(quantity: &str) -> String {
    match quantity {
        "first_byte" => "first byte".to_owned(),
        "longer" => "longer than 1 MB".to_owned(),
        other => other
            .replace('_', " ")
            .replace("kB", " kB")
            .replace("MB", " MB"),
    }
}
