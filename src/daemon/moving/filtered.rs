//! What the kernel would drop of what a neighbor sends on, as it cannot come from there (`rp_filter`).

use std::collections::BTreeSet;

use pepd_config::Neighbor;
use pepd_move::wire::Offered;
use pepd_packet::FourTuple;

/// Gives those of which it would drop something: they would hang. Where it cannot be asked it is left to `pepd doctor`,
/// which looks at the settings.
pub(super) async fn filtered(neighbor: &Neighbor, offered: &[Offered]) -> BTreeSet<FourTuple> {
    let Some(from) = neighbor.v4 else {
        return BTreeSet::new();
    };
    let Ok(Some(device)) = pepd_net::link_to(from.into()).await else {
        return BTreeSet::new();
    };
    let flows = offered.iter().map(|it| it.flow);
    let flows = flows.filter(|flow| flow.client.is_ipv4());
    let both = flows.clone().flat_map(|flow| {
        let (client, server) = (flow.client.ip(), flow.server.ip());
        [(client, server), (server, client)]
    });
    let both: Vec<_> = both.collect();
    let impossible = pepd_net::impossible_by(device, &both).await;
    let impossible = impossible.unwrap_or_default();
    let ways = flows.zip(impossible.chunks(2));
    ways.filter(|(_, ways)| ways.contains(&true))
        .map(|(flow, _)| flow)
        .collect()
}
