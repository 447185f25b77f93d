//! The shortest paths through a fleet: which link each box takes towards each other box.
//!
//! Every box finds its own next link by itself, from the same file, and the next box goes on from
//! there. For this to end where it should, and for both directions of a connection to cross the
//! same boxes, there must be exactly one best path between any two boxes, whichever of them looks
//! and in whichever direction. So links are told apart: of the paths through the fewest boxes, the
//! one wins whose last link (last in the file) stands earlier; if that is the same, the last but
//! one decides; and so on. It is as if the n-th link had the length 1 + 2⁻ᴺ⁺ⁿ: no two sets of links
//! are equally long, so the shortest path is unique, its reverse is the shortest path back, and
//! every part of it is the shortest path between its own ends.

/// The links to take from anywhere to anywhere.
#[derive(Debug)]
pub(super) struct ShortestPaths {
    /// The link to take, by destination and then by box.
    next: Vec<Vec<Option<usize>>>,
}

impl ShortestPaths {
    /// Finds the paths through `boxes` boxes over these links, each between two of them. A link
    /// that leads to its own start is never taken.
    pub(super) fn new(boxes: usize, links: &[[usize; 2]]) -> Self {
        let mut at = vec![Vec::new(); boxes];
        for (link, &[one, other]) in links.iter().enumerate() {
            at[one].push((link, other));
            at[other].push((link, one));
        }
        Self {
            next: (0..boxes).map(|to| paths_to(to, &at)).collect(),
        }
    }

    /// Returns the link that box `from` takes towards box `to`; `None` if there is no path, or if
    /// they are the same.
    pub(super) fn next_link(&self, from: usize, to: usize) -> Option<usize> {
        self.next[to][from]
    }
}

/// Finds the paths to one box, outwards from it, layer by layer. `at` has each box's links and
/// where they lead.
fn paths_to(to: usize, at: &[Vec<(usize, usize)>]) -> Vec<Option<usize>> {
    // The links of the best path from each box, the last of the file first.
    let mut best: Vec<Option<Vec<usize>>> = vec![None; at.len()];
    let mut next = vec![None; at.len()];
    best[to] = Some(Vec::new());
    let mut layer = vec![to];
    while !layer.is_empty() {
        let mut further: Vec<usize> = Vec::new();
        let mut found: Vec<Option<(Vec<usize>, usize)>> = vec![None; at.len()];
        for &near in &layer {
            for &(link, far) in &at[near] {
                if best[far].is_some() {
                    continue;
                }
                let mut path = best[near].clone().unwrap_or_default();
                path.push(link);
                path.sort_unstable_by(|a, b| b.cmp(a));
                if found[far].is_none() {
                    further.push(far);
                }
                if found[far].as_ref().is_none_or(|(known, _)| path < *known) {
                    found[far] = Some((path, link));
                }
            }
        }
        for (far, found) in found.into_iter().enumerate() {
            if let Some((path, link)) = found {
                best[far] = Some(path);
                next[far] = Some(link);
            }
        }
        layer = further;
    }
    next
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Returns a connected graph: a random tree and some more links, no two between the same boxes.
    fn graph() -> impl Strategy<Value = (usize, Vec<[usize; 2]>)> {
        (1..14_usize)
            .prop_flat_map(|boxes| {
                let tree = prop::collection::vec(any::<prop::sample::Index>(), boxes - 1);
                let more = prop::collection::vec((0..boxes, 0..boxes), 0..20);
                (Just(boxes), tree, more)
            })
            .prop_flat_map(|(boxes, tree, more)| {
                let tree = tree
                    .iter()
                    .enumerate()
                    .map(|(index, to)| (to.index(index + 1), index + 1));
                let all: BTreeSet<[usize; 2]> = tree
                    .chain(more)
                    .filter(|(one, other)| one != other)
                    .map(|(one, other)| [one.min(other), one.max(other)])
                    .collect();
                let all: Vec<_> = all.into_iter().collect();
                (Just(boxes), Just(all).prop_shuffle())
            })
    }

    /// Returns the boxes that are crossed when each takes its own next link.
    fn walk(paths: &ShortestPaths, links: &[[usize; 2]], from: usize, to: usize) -> Vec<usize> {
        let mut crossed = vec![from];
        let mut here = from;
        while here != to {
            let link = links[paths.next_link(here, to).expect("it is connected")];
            here = if link[0] == here { link[1] } else { link[0] };
            assert!(!crossed.contains(&here), "a loop: {crossed:?} and {here}");
            crossed.push(here);
        }
        crossed
    }

    /// Distances by Floyd and Warshall's algorithm, which has nothing in common with ours.
    fn distances(boxes: usize, links: &[[usize; 2]]) -> Vec<Vec<usize>> {
        let mut distance = vec![vec![usize::MAX / 2; boxes]; boxes];
        for (index, row) in distance.iter_mut().enumerate() {
            row[index] = 0;
        }
        for &[one, other] in links {
            distance[one][other] = 1;
            distance[other][one] = 1;
        }
        for middle in 0..boxes {
            for one in 0..boxes {
                for other in 0..boxes {
                    let through = distance[one][middle] + distance[middle][other];
                    distance[one][other] = distance[one][other].min(through);
                }
            }
        }
        distance
    }

    proptest! {
        #[test]
        fn every_box_is_reached_through_the_fewest_and_back_through_the_same(
            (boxes, links) in graph()
        ) {
            let paths = ShortestPaths::new(boxes, &links);
            let distances = distances(boxes, &links);
            for (from, row) in distances.iter().enumerate() {
                for (to, &distance) in row.iter().enumerate() {
                    let there = walk(&paths, &links, from, to);
                    prop_assert_eq!(there.len() - 1, distance);
                    let mut back = walk(&paths, &links, to, from);
                    back.reverse();
                    prop_assert_eq!(there, back);
                }
            }
        }
    }

    #[test]
    fn of_equal_ways_the_links_that_stand_earlier_are_taken() {
        // A ring of four: 0–1–3 or 0–2–3.
        let through_1_first = [[0, 1], [1, 3], [0, 2], [2, 3]];
        let paths = ShortestPaths::new(4, &through_1_first);
        assert_eq!(walk(&paths, &through_1_first, 0, 3), [0, 1, 3]);
        let through_2_first = [[0, 2], [2, 3], [0, 1], [1, 3]];
        let paths = ShortestPaths::new(4, &through_2_first);
        assert_eq!(walk(&paths, &through_2_first, 0, 3), [0, 2, 3]);
        // The first link does not make up for the last.
        let mixed = [[0, 1], [0, 2], [2, 3], [1, 3]];
        let paths = ShortestPaths::new(4, &mixed);
        assert_eq!(walk(&paths, &mixed, 3, 0), [3, 2, 0]);
    }

    #[test]
    fn what_is_not_connected_has_no_way() {
        let paths = ShortestPaths::new(3, &[[0, 1]]);
        assert_eq!(paths.next_link(0, 1), Some(0));
        assert_eq!(paths.next_link(0, 2), None);
        assert_eq!(paths.next_link(1, 1), None);
    }
}
