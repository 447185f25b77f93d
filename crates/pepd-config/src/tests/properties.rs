//! What holds for any input.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::{MINIMAL, context, designed, files};
use crate::{Campus, CampusId, Config, LegId, Via, parse};

const EVERYTHING: &str = include_str!("../../../../config/pepd.toml");

/// Text that is not unlike a configuration.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<char>().prop_map(String::from),
        "[\\[\\]{}=\",.#\n\r\t -]{0,4}",
        "-?[0-9]{0,40}(\\.[0-9]{0,3})?([kMGT]i?B|[kM]bit|ms|s|h)?",
        "\"[0-9a-f:./-]{0,30}\"",
        prop::sample::select(
            crate::keys::ALL
                .iter()
                .flat_map(|(title, keys)| keys.iter().copied().chain([*title]))
                .collect::<Vec<_>>()
        )
        .prop_map(String::from),
    ]
}

/// Returns a TOML value much like one in a configuration.
fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        Just("1979-05-27".to_owned()),
        "\"[0-9a-f:.]{0,12}/[0-9]{1,3}\"",
        "\"[0-9]{1,20}(\\.[0-9]{1,20})? ?[a-zA-Z]{0,4}\"",
        "\"(0x)?[0-9]{1,12}[/-](0x)?[0-9]{1,12}\"",
        "\"[a-z-]{0,12}\"",
        any::<String>().prop_map(|text| toml::Value::String(text).to_string()),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            inner.prop_map(|item| format!("{{ idle = {item}, x = {item} }}")),
        ]
    })
}

/// Neither reading nor rendering may panic, whatever the text.
fn survives(text: &str) {
    for result in [
        parse("pepd.toml", text, &context()).map_err(|report| report.render(true)),
        designed(text),
    ] {
        if let Err(report) = result {
            assert!(report.contains("error"), "an empty report");
        }
    }
}

proptest! {
    #[test]
    fn any_text(text in any::<String>()) {
        survives(&text);
    }

    #[test]
    fn any_fragments(fragments in prop::collection::vec(fragment(), 0..60)) {
        survives(&fragments.concat());
    }

    #[test]
    fn any_mutation_of_a_valid_file(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..20_usize, fragment()), 1..6)
    ) {
        let mut text: Vec<char> = files::uncommented(EVERYTHING).chars().collect();
        if edits.len() % 2 == 0 {
            text = MINIMAL.chars().collect();
        }
        for (at, removed, put) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + removed).min(text.len());
            text.splice(start..end, put.chars());
        }
        survives(&text.into_iter().collect::<String>());
    }

    /// Valid TOML throughout, so that it is the meaning that is tried.
    #[test]
    fn any_value_of_any_key(
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..6)
    ) {
        let text = files::uncommented(EVERYTHING);
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        let keys: Vec<usize> =
            (0..lines.len()).filter(|&line| lines[line].contains(" = ") && !lines[line].starts_with('#')).collect();
        for (at, value) in changes {
            let line = &mut lines[keys[at.index(keys.len())]];
            let (key, _) = line.split_once(" = ").expect("as filtered");
            *line = format!("{key} = {value}");
        }
        survives(&lines.join("\n"));
    }

    /// Deep nesting and long lines.
    #[test]
    fn any_repetition(piece in fragment(), times in 0..3000_usize) {
        survives(&piece.repeat(times));
        survives(&format!("x = {}", piece.repeat(times)));
    }

    /// The longest prefix is found as a comparison bit by bit finds it.
    #[test]
    fn longest_prefix(
        nets in prop::collection::vec(net(), 0..40),
        address in address(),
    ) {
        let config = of_prefixes(&nets);
        let naive = nets
            .iter()
            .enumerate()
            .filter(|(_, net)| matching_bits(net.network(), address) >= Some(net.prefix_len()))
            .map(|(index, net)| (net.prefix_len(), index))
            .max();
        // Of several campuses with the same prefix, which no file can have, either is right.
        let found = config.campus_of(address).map(|CampusId(index)| nets[index % nets.len()]);
        prop_assert_eq!(found.map(|net| net.prefix_len()), naive.map(|(length, _)| length));
        prop_assert!(found.is_none_or(|net| matching_bits(net.network(), address) >= Some(net.prefix_len())));
    }
}

/// Few distinct bits, so that prefixes nest and addresses hit.
fn address() -> impl Strategy<Value = IpAddr> {
    let sparse = || prop::sample::select(vec![0_u8, 1, 128, 255]);
    prop_oneof![
        [sparse(), sparse(), sparse(), sparse()].prop_map(|octets| Ipv4Addr::from(octets).into()),
        [sparse(), sparse(), sparse()].prop_map(|[a, b, c]| {
            let mut octets = [0; 16];
            (octets[0], octets[1], octets[15]) = (a, b, c);
            Ipv6Addr::from(octets).into()
        }),
    ]
}

fn net() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128_u8).prop_map(|(address, length)| match address {
        IpAddr::V4(v4) => Ipv4Net::new_assert(v4, length % 33).trunc().into(),
        IpAddr::V6(v6) => Ipv6Net::new_assert(v6, length).trunc().into(),
    })
}

/// Returns how many leading bits two addresses share; `None` if they are not of one family.
fn matching_bits(one: IpAddr, other: IpAddr) -> Option<u8> {
    let bits = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return None,
    };
    u8::try_from(bits).ok()
}

/// Returns a configuration with a campus for each prefix, in their order.
fn of_prefixes(nets: &[IpNet]) -> Config {
    let mut config = parse("pepd.toml", MINIMAL, &context()).expect("it is valid");
    let campus = |(index, net): (usize, &IpNet)| Campus {
        name: index.to_string(),
        prefixes: vec![*net],
        via: Via::Local,
        leg: LegId(0),
    };
    config.campuses = nets.iter().enumerate().map(campus).collect();
    config
}
