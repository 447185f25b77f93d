//! Checks that boxes, links and campuses make a whole.

use super::helper_box::HelperBox;
use super::link::Link;
use super::shortest_paths::ShortestPaths;
use crate::report::{Problem, Problems, shown};
use crate::resolve::campus::CampusDraft;

/// Finds the box that each campus lies behind. `None` is always after a problem.
pub(super) fn homes(
    boxes: &[HelperBox<'_>],
    campuses: &[CampusDraft<'_>],
    problems: &mut Problems,
) -> Option<Vec<usize>> {
    let mut homes = vec![None; campuses.len()];
    for (index, it) in boxes.iter().enumerate() {
        for campus in &it.campuses {
            let home = homes.get_mut(*campus.get_ref())?;
            let Some((first, place)) = home else {
                *home = Some((index, campus.span()));
                continue;
            };
            let name = campuses.get(*campus.get_ref()).and_then(CampusDraft::name);
            let name = shown(name.unwrap_or_default());
            let problem = if *first == index {
                Problem::new(campus.span(), format!("the campus `{name}` is given twice"))
                    .help("remove one")
            } else {
                Problem::new(
                    campus.span(),
                    format!("the campus `{name}` lies behind two boxes"),
                )
                .help(
                    "remove it from one, or make two campuses of it: both directions of a \
                     connection have to cross the same boxes",
                )
            };
            problems.push(
                problem
                    .label("the second time")
                    .also(place.clone(), "the first time"),
            );
        }
    }
    for (campus, home) in campuses.iter().zip(&homes) {
        if let (Some(name), None) = (campus.spanned_name(), home) {
            let shown = shown(name.get_ref());
            problems.push(
                Problem::new(
                    name.span(),
                    format!("no box can reach the campus `{shown}`"),
                )
                .label("behind no box")
                .help(format!(
                    "add \"{shown}\" to the `campuses` of the `[[box]]` that it lies behind"
                )),
            );
        }
    }
    homes
        .into_iter()
        .map(|home| home.map(|(index, _)| index))
        .collect()
}

/// Notes a problem where a box that should be reached is not, and for boxes and links that
/// nothing goes through.
pub(super) fn paths(
    boxes: &[HelperBox<'_>],
    links: &[Link],
    paths: &ShortestPaths,
    problems: &mut Problems,
) {
    let ends: Vec<usize> = boxes
        .iter()
        .enumerate()
        .filter(|(_, it)| !it.campuses.is_empty())
        .map(|(index, _)| index)
        .collect();
    let before = problems.count();
    refuse_parted(boxes, &ends, paths, problems);
    if problems.count() > before {
        return;
    }
    let mut used = vec![false; links.len()];
    let mut crossed: Vec<bool> = boxes.iter().map(|it| !it.campuses.is_empty()).collect();
    for &to in &ends {
        for &from in &ends {
            let mut here = from;
            while let Some(index) = paths.next_link(here, to) {
                let Some([one, other]) = links.get(index).map(|link| link.ends) else {
                    break;
                };
                used[index] = true;
                here = if here == one { other } else { one };
                crossed[here] = true;
            }
        }
    }
    refuse_idle(boxes, links, &used, &crossed, problems);
}

/// Notes a problem for every box with campuses that the first such box cannot reach.
fn refuse_parted(
    boxes: &[HelperBox<'_>],
    ends: &[usize],
    paths: &ShortestPaths,
    problems: &mut Problems,
) {
    let Some((first, others)) = ends.split_first() else {
        return;
    };
    for other in others {
        if paths.next_link(*first, *other).is_none() {
            let (here, there) = (&boxes[*first], &boxes[*other]);
            let (one, two) = (here.shown(), there.shown());
            problems.push(
                Problem::new(
                    there.span(),
                    format!("no links lead from the box `{one}` to the box `{two}`"),
                )
                .label("cannot be reached")
                .also(here.span(), "from here")
                .help(format!(
                    "add a `[[link]]` with `boxes = [\"{one}\", \"{two}\"]`, or links to boxes \
                     between them"
                )),
            );
        }
    }
}

/// Notes a problem for every link that no campus is reached over, and for every box that has
/// neither campuses nor links. Each box would drop whatever such a link brought, and pepd does not
/// turn to it when another fails: whoever wrote it expects something that does not happen.
fn refuse_idle(
    boxes: &[HelperBox<'_>],
    links: &[Link],
    used: &[bool],
    crossed: &[bool],
    problems: &mut Problems,
) {
    for (link, _) in links.iter().zip(used).filter(|(_, used)| !**used) {
        let [one, other] = link.ends.map(|end| boxes[end].shown());
        problems.push(
            Problem::new(
                link.at.clone(),
                format!("no campus is reached over the link between `{one}` and `{other}`"),
            )
            .label("carries nothing")
            .help(
                "remove it, or put it above the others: of ways through as many boxes, that whose \
                 links stand earlier is taken",
            ),
        );
    }
    for (index, it) in boxes.iter().enumerate() {
        let linked = links.iter().any(|link| link.end_of(index).is_some());
        if !crossed[index] && !linked {
            problems.push(
                Problem::new(
                    it.span(),
                    format!("the box `{}` has neither campuses nor links", it.shown()),
                )
                .label("nothing goes through it")
                .help("add a `[[link]]` to another box, or remove this one"),
            );
        }
    }
}
