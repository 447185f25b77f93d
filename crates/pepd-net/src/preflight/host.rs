//! What the host's own settings mean for pepd. Reads /proc/sys; changes nothing.

use std::fs;
use std::path::Path;

use super::warning::Warning;
use crate::error::{Classify, Kind};
use crate::plan::Plan;
use crate::prefix::Family;

/// A host whose settings keep every captured packet away.
///
/// `src_valid_mark` makes the kernel drop them.
#[derive(Debug, thiserror::Error)]
#[error(
    "net.ipv4.conf.{interface}.src_valid_mark is 1: the kernel then validates the source of \
     marked packets against pepd's own table and drops them all; set it to 0 (sysctl -w \
     net.ipv4.conf.{interface}.src_valid_mark=0; wg-quick is known to set it)"
)]
pub struct SourceValidMark {
    /// The interface, or `all`.
    pub interface: String,
}

impl Classify for SourceValidMark {
    fn kind(&self) -> Kind {
        Kind::Unavailable
    }
}

/// Fits the plan to the host: without IPv6, only the IPv4 part remains.
pub(crate) fn fit(plan: &Plan) -> Result<(Plan, Vec<Warning>), SourceValidMark> {
    refuse_source_validation(plan)?;
    let mut plan = plan.clone();
    let mut warnings = Vec::new();
    if plan.families.contains(&Family::V6)
        && let Some(cure) = no_ipv6()
    {
        plan = plan.without(Family::V6);
        warnings.push(Warning {
            text: "this host has no IPv6: the IPv6 prefixes are left out".to_owned(),
            cure,
        });
    }
    warnings.extend(forwarding_is_off(&plan));
    Ok((plan, warnings))
}

/// Warns of each family of the plan that the host does not forward.
pub(crate) fn forwarding_is_off(plan: &Plan) -> Vec<Warning> {
    let sysctls = plan.families.iter().map(|family| match family {
        Family::V4 => ("net/ipv4/ip_forward", "IPv4"),
        Family::V6 => ("net/ipv6/conf/all/forwarding", "IPv6"),
    });
    sysctls
        .filter(|(sysctl, _)| read(sysctl).as_deref() == Some("0"))
        .map(|(sysctl, version)| Warning {
            text: format!(
                "{version} forwarding is off: no {version} connection is split, because one is \
                 split where it would be forwarded, and none is routed either"
            ),
            cure: format!("sysctl -w {}=1", sysctl.replace('/', ".")),
        })
        .collect()
}

/// Says why IPv6 cannot be used, as the cure.
fn no_ipv6() -> Option<String> {
    // Where it cannot be looked up now, the kernel says so when it is given the plan.
    if fs::exists("/proc/sys/net/ipv6").is_ok_and(|exists| !exists) {
        return Some("boot without ipv6.disable=1, or remove the prefixes".to_owned());
    }
    // The route that delivers captured packets points to lo.
    (read("net/ipv6/conf/lo/disable_ipv6").as_deref() == Some("1"))
        .then(|| "sysctl -w net.ipv6.conf.lo.disable_ipv6=0, or remove the prefixes".to_owned())
}

/// Refuses a host with src_valid_mark.
///
/// With it, the reverse-path check of a captured packet looks into pepd's table, finds the source
/// to be "local" and drops the packet, at any rp_filter (fib_validate_source,
/// net/ipv4/fib_frontend.c).
fn refuse_source_validation(plan: &Plan) -> Result<(), SourceValidMark> {
    if !plan.families.contains(&Family::V4) {
        return Ok(());
    }
    let mut interfaces: Vec<String> = fs::read_dir("/proc/sys/net/ipv4/conf")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // `default` is a template only, and captured packets never come from lo.
        .filter(|interface| interface != "default" && interface != "lo")
        .collect();
    // `all` first: it is the likelier one, and setting it cures every interface.
    interfaces.sort_by_key(|interface| (interface != "all", interface.clone()));
    let set = interfaces.into_iter().find(|interface| {
        read(&format!("net/ipv4/conf/{interface}/src_valid_mark")).as_deref() == Some("1")
    });
    match set {
        Some(interface) => Err(SourceValidMark { interface }),
        None => Ok(()),
    }
}

/// Reads a kernel parameter by its path below /proc/sys.
pub(crate) fn read(sysctl: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(sysctl)).ok()?;
    Some(text.trim().to_owned())
}
