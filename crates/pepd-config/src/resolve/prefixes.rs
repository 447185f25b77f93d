//! Lists of prefixes: how each is written, and how they relate to each other.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use toml::Spanned;

use crate::field::Field;
use crate::report::{Problem, Problems, shown};

/// Reads a prefix without host bits. `hint` may know what else the text could mean.
pub(super) fn prefix(
    field: Field<'_>,
    hint: impl FnOnce(&str) -> Option<String>,
) -> Result<Spanned<IpNet>, Problem> {
    let text = field.text("a list of prefixes in quotes", "[\"192.0.2.0/24\"]")?;
    let Ok(net) = text.parse::<IpNet>() else {
        let help = match (text.parse::<IpAddr>(), text.rsplit_once('/')) {
            (Ok(address), _) => {
                format!(
                    "write \"{}\" for this one host, or its network",
                    IpNet::from(address)
                )
            }
            (_, Some((address, _))) if address.parse::<IpAddr>().is_ok() => {
                "the number after `/` is the prefix length: up to 32 for IPv4, 128 for IPv6"
                    .to_owned()
            }
            _ => hint(text).unwrap_or_else(|| {
                "write one such as \"192.0.2.0/24\" or \"2001:db8::/32\"".into()
            }),
        };
        return Err(field.malformed(text, "a prefix", help));
    };
    if net.trunc() != net {
        return Err(field
            .problem(format!(
                "the prefix `{}` has bits set in its host part",
                shown(text)
            ))
            .label("not the address of a network")
            .help(format!(
                "write \"{}\" for the network, or \"{}\" for the one host",
                net.trunc(),
                IpNet::from(net.addr())
            )));
    }
    Ok(field.spanned(net))
}

/// A prefix of a list.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) prefix: Spanned<IpNet>,
    /// The number of the list that it is in.
    pub(super) list: usize,
}

/// Notes a problem for every prefix that was given before, in the same list or another.
/// `describe` says what two lists are to the operator.
pub(super) fn refuse_repeated(
    prefixes: &[Listed],
    describe: impl Fn(usize, usize) -> String,
    problems: &mut Problems,
) {
    let mut seen = HashMap::new();
    for Listed { prefix, list } in prefixes {
        let net = *prefix.get_ref();
        let Some((first, first_list)) = seen.get(&net) else {
            seen.insert(net, (prefix.span(), *list));
            continue;
        };
        let problem = if list == first_list {
            Problem::new(prefix.span(), format!("the prefix `{net}` is given twice"))
                .help("remove one")
        } else {
            let lists = describe(*first_list, *list);
            Problem::new(prefix.span(), format!("the prefix `{net}` is in two campuses: {lists}"))
                .help("remove it from one: an address belongs to one campus, that with the longest prefix")
        };
        problems.push(
            problem
                .label("the second time")
                .also(first.clone(), "the first time"),
        );
    }
}

/// Notes a problem for every prefix that adds nothing to a list, since a shorter one in the same
/// list holds it.
pub(super) fn refuse_redundant(prefixes: &[Listed], problems: &mut Problems) {
    let mut sorted: Vec<&Listed> = prefixes.iter().collect();
    // A prefix comes right before those that it holds.
    sorted.sort_by_key(|listed| (listed.list, *listed.prefix.get_ref()));
    let mut holder: Option<&Listed> = None;
    for listed in sorted {
        let inner = listed.prefix.get_ref();
        let outer = holder.filter(|it| it.list == listed.list);
        match outer.filter(|it| it.prefix.get_ref().contains(inner)) {
            None => holder = Some(listed),
            // Given twice, which is another problem.
            Some(outer) if outer.prefix.get_ref() == inner => {}
            Some(outer) => problems.push(
                Problem::new(
                    listed.prefix.span(),
                    format!(
                        "the prefix `{inner}` lies within `{}`",
                        outer.prefix.get_ref()
                    ),
                )
                .label("adds nothing")
                .also(outer.prefix.span(), "holds it already")
                .help("remove one of them"),
            ),
        }
    }
}
