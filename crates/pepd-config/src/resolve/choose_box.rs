//! Chooses the box that the configuration is for.

use super::fleet::Fleet;
use super::parts::Parts;
use super::peer::PeerDraft;
use crate::context::{Context, Which};
use crate::model::Config;
use crate::report::{Problem, Problems, Span, listed, nearest, shown};

/// Resolves the file of one box: whoever names a box means this one.
pub(super) fn of_one(
    parts: &Parts<'_>,
    peers: Vec<PeerDraft<'_>>,
    context: &Context,
    problems: &mut Problems,
) -> Option<Config> {
    let own = parts.node.name.as_ref()?;
    let name = *own.get_ref();
    if let Some(wanted) = &context.node
        && wanted != name
    {
        let (name, wanted) = (shown(name), shown(wanted));
        problems.push(
            Problem::new(
                own.span(),
                format!("the file is that of the box `{name}`, not of `{wanted}`"),
            )
            .label("this box")
            .help("name another file with `-c FILE`, or leave `--node` out"),
        );
        return None;
    }
    Some(Config {
        peers: peers
            .into_iter()
            .filter_map(|peer| peer.finish(&parts.campuses))
            .collect(),
        ..parts.config(name, parts.campuses.clone())
    })
}

/// Resolves the file of a fleet: all of its boxes, or the one that is asked for.
pub(super) fn of_fleet(
    fleet: &Fleet<'_>,
    parts: &Parts<'_>,
    context: &Context,
    which: Which,
    problems: &mut Problems,
) -> Option<Vec<Config>> {
    if which == Which::Every {
        let every = 0..fleet.names().count();
        return Some(every.map(|index| fleet.config(index, parts)).collect());
    }
    let index = problems.take(chosen(fleet, parts, context))?;
    Some(vec![fleet.config(index, parts)])
}

/// Finds the box. The command line knows best, then the file; otherwise a box is named like its
/// host.
fn chosen(fleet: &Fleet<'_>, parts: &Parts<'_>, context: &Context) -> Result<usize, Problem> {
    let find = |name: &str| fleet.names().position(|known| known == name);
    let in_file = parts.node.name.as_ref();
    let (name, whose, at): (&str, &str, Option<Span>) =
        match (&context.node, in_file, &context.host) {
            (Some(name), ..) => (name, "as the command line asks for", None),
            (None, Some(name), _) => (name.get_ref(), "as `[node]` says", Some(name.span())),
            (None, None, Some(host)) => {
                // The name of a host may come with its domain.
                let short = host
                    .split_once('.')
                    .map_or(host.as_str(), |(short, _)| short);
                if let Some(index) = find(host).or_else(|| find(short)) {
                    return Ok(index);
                }
                (host, "as this host is", None)
            }
            (None, None, None) => {
                let title = "the file is that of a fleet, and this host has no name";
                return Err(Problem::of_file(title).help(choose(fleet)));
            }
        };
    find(name).ok_or_else(|| {
        let title = format!("no `[[box]]` is named `{}`, {whose}", shown(name));
        let help = match nearest(name, fleet.names()) {
            Some(near) if context.node.is_some() || at.is_some() => format!(
                "did you mean \"{near}\"? The boxes are: {}",
                listed(fleet.names())
            ),
            _ => choose(fleet),
        };
        match at {
            Some(at) => Problem::new(at, title).label("not a box of the fleet"),
            None => Problem::of_file(title),
        }
        .help(help)
    })
}

fn choose(fleet: &Fleet<'_>) -> String {
    format!(
        "say with `--node NAME` which box this is: {}",
        listed(fleet.names())
    )
}
