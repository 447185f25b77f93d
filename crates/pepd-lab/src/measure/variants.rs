//! Which variants of an experiment this machine can run.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::paper::{Experiment, Matrix, ProxyKind, Variant};

/// The congestion controls of pepd's own.
const OWN: [&str; 2] = ["fixed-rate", "find-rate"];

/// Returns the variants that this machine can run, and why not the others.
pub(super) fn possible(experiment: &Experiment) -> Result<(Vec<Variant>, Vec<String>)> {
    let mut available = congestion_controls()?;
    let wanted = match experiment.matrix {
        Some(Matrix {}) => Matrix::variants(&available),
        None => experiment.variants.clone(),
    };
    // After the matrix, which has only the kernel's: pepd's own are no hosts'.
    let own = pepd_bpf::probe();
    if own.is_ok() {
        available.extend(OWN.map(str::to_owned));
    }
    let (mut variants, mut left_out) = (Vec::new(), Vec::new());
    for variant in wanted {
        let names = [Some(&variant.sender), variant.forward.as_ref()];
        let lacking = names
            .into_iter()
            .flatten()
            .find(|name| !available.contains(name));
        if let Some(name) = lacking {
            let why = match &own {
                Err(error) if OWN.contains(&name.as_str()) => error.to_string(),
                _ => format!("this kernel has no congestion control `{name}`"),
            };
            left_out.push(format!("{}: {why}", variant.name));
        } else if variant.proxy == ProxyKind::Haproxy && !has_haproxy() {
            left_out.push(format!("{}: haproxy is not installed", variant.name));
        } else {
            variants.push(variant);
        }
    }
    if variants.is_empty() {
        bail!("nothing of it can run here: {}", left_out.join("; "));
    }
    Ok((variants, left_out))
}

fn congestion_controls() -> Result<Vec<String>> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn has_haproxy() -> bool {
    Command::new("haproxy")
        .arg("-v")
        .output()
        .is_ok_and(|output| output.status.success())
}
