//! The clamp: the MSS of connections that are routed, unsplit, through a tunnel.
//!
//! A split connection's legs follow the MTU of their routes. What a rule exempts, what comes while
//! the gate is closed, and what passes a box whose daemon is gone are connections of two hosts
//! that know nothing of tunnels: they learn of a tunnel's MTU by an ICMP error, or, where a filter
//! eats these, not at all. So the MSS in each SYN and SYN-ACK that is forwarded into a tunnel or
//! out of one is lowered to what fits. It is never raised (nft_exthdr_tcp_set_eval,
//! net/netfilter/nft_exthdr.c), and a SYN without the option stays so: what it then stands for,
//! 536 or 1220 bytes (RFC 9293, section 3.7.1), fits any tunnel.
//!
//! `rt mtu` is the least of what the ways there and back carry, with what path-MTU discovery has
//! taught this box (get_tcpmss, net/netfilter/nft_rt.c). It takes the way back for one of this
//! host's own packets, which has no way into a tunnel where a campus is all the world, nor by
//! policy routing of the operator's. So what comes out of a tunnel is also held to the tunnel's own
//! MTU.
//!
//! Both expressions have been part of nf_tables itself since before `tproxy`: no kernel has one
//! without the others.

use super::forward::ROUTED;
use super::text::Ruleset;
use crate::plan::Plan;
use crate::prefix::Family;

/// The match of a handshake's segments, both ways; with SYN set, the other two flags make no sense.
const ANY_SYN: &str = "tcp flags & (fin | syn | rst) == syn";

const SET_MSS: &str = "tcp option maxseg size set";

/// Writes the chains that lower the MSS of what is routed through tunnels.
pub(super) fn clamp_chains(ruleset: &mut Ruleset, plan: &Plan) {
    if plan.tunnels.is_empty() {
        return;
    }
    let devices: Vec<String> = plan
        .tunnels
        .iter()
        .map(|tunnel| format!("\"{}\"", tunnel.device))
        .collect();
    let devices = devices.join(", ");
    let mut lines: Vec<String> = ["iifname", "oifname"]
        .iter()
        .map(|side| format!("{side} {{ {devices} }} {SET_MSS} rt mtu"))
        .collect();
    lines.extend(sizes(plan));
    ruleset.chain("clamped", None, &lines);
    // One rule for all that is routed: a base chain costs every packet more than a rule does.
    ruleset.base_chain(
        "clamp",
        &[
            format!("type filter hook forward priority {ROUTED}; policy accept;"),
            format!("{ANY_SYN} goto clamped"),
        ],
    );
}

/// Gives what fits the tunnel that a packet came out of. Where that is not known until the tunnel
/// is there, a comment says so: no ruleset with one goes to the kernel for good.
fn sizes(plan: &Plan) -> impl Iterator<Item = String> {
    plan.tunnels.iter().map(|tunnel| {
        let Some(mtu) = tunnel.inner_mtu else {
            return format!(
                "# iifname \"{}\" {SET_MSS}: its MTU, which its path decides, less the headers",
                tunnel.device
            );
        };
        let sizes: Vec<String> = plan
            .families
            .iter()
            .map(|&family| {
                let (protocol, headers) = match family {
                    Family::V4 => ("ipv4", 40),
                    Family::V6 => ("ipv6", 60),
                };
                format!("{protocol} : {}", mtu.saturating_sub(headers))
            })
            .collect();
        format!(
            "iifname \"{}\" {SET_MSS} meta nfproto map {{ {} }}",
            tunnel.device,
            sizes.join(", ")
        )
    })
}
