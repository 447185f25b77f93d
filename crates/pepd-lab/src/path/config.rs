//! The daemon's configuration on each helper box of an experiment.

use std::path::Path;

use super::network::{A_TO_I, I_TO_B, MTU};
use crate::paper::{Point, Variant};

/// The smallest `buffer` that the configuration of a leg may have, in bytes.
const LEAST_BUFFER: u64 = 4096;

const SENDER: &str = "[[campus]]\nname = \"sender\"\nprefixes = [\"10.1.0.0/16\"]\n";
const RECEIVER: &str = "[[campus]]\nname = \"receiver\"\nprefixes = [\"10.2.0.0/16\"]\n";

/// Returns the configuration of the only box: both campuses are its own, and each leg's congestion
/// control is that towards its campus. A proxy buffer of so many packets is what the near leg may
/// receive, and what may wait on the far leg that was not sent yet.
#[must_use]
pub fn alone(variant: &Variant, point: &Point, sockets: &Path) -> String {
    let bytes = |packets: u32| u64::from(packets * u32::from(MTU.bytes())).max(LEAST_BUFFER);
    let held = point
        .buffer
        .map(|packets| bytes(packets + variant.allowance));
    let near = leg("near", &variant.sender, variant) + &size("buffer", held);
    let unsent = size("notsent_lowat", point.buffer.map(bytes));
    let far = far(variant) + &unsent;
    let rule = match variant.hold_acks {
        Some(_) => "[[rule]]\naction = \"hold-acks\"\n",
        None => "",
    };
    format!(
        "{}{SENDER}leg = \"near\"\n{RECEIVER}leg = \"far\"\n{near}{far}{rule}",
        node("lab", sockets)
    )
}

/// Returns the configurations of the three boxes of Jain & Ott, section II, in order: next to the
/// sender, in the middle, next to the receiver. Tunnels join them; towards the receiver the first
/// leg has the sender's congestion control, and the second the variant's.
#[must_use]
pub fn chain(variant: &Variant, sockets: &Path) -> [String; 3] {
    let lan = leg("lan", &variant.sender, variant);
    let near = leg("near", &variant.sender, variant);
    let far = far(variant);
    let [to_i, from_a] = [peer("hb-i", A_TO_I), peer("hb-a", [A_TO_I[1], A_TO_I[0]])];
    let [to_b, from_i] = [peer("hb-b", I_TO_B), peer("hb-i", [I_TO_B[1], I_TO_B[0]])];
    [
        format!(
            "{}{to_i}{SENDER}leg = \"lan\"\n{RECEIVER}via = \"hb-i\"\nleg = \"near\"\n{lan}{near}",
            node("hb-a", sockets)
        ),
        format!(
            "{}{from_a}{to_b}{SENDER}via = \"hb-a\"\nleg = \"near\"\n\
             {RECEIVER}via = \"hb-b\"\nleg = \"far\"\n{near}{far}",
            node("hb-i", sockets)
        ),
        format!(
            "{}{from_i}{SENDER}via = \"hb-i\"\nleg = \"far\"\n{RECEIVER}leg = \"lan\"\n{lan}{far}",
            node("hb-b", sockets)
        ),
    ]
}

/// Describes the node, whose admin socket is in `sockets`, beside those of other boxes.
fn node(name: &str, sockets: &Path) -> String {
    format!(
        "[node]\nname = \"{name}\"\ndrain = \"0s\"\n[capture]\nhandshake = \"early\"\n\
         [admin]\nsocket = \"{}/{name}.sock\"\n",
        sockets.display()
    )
}

fn leg(name: &str, congestion: &str, variant: &Variant) -> String {
    let thin = variant.thin;
    format!("[leg.{name}]\ncongestion = \"{congestion}\"\nthin = {thin}\n")
}

fn size(key: &str, bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!("{key} = \"{bytes}B\"\n"))
}

fn peer(name: &str, [local, remote]: [&str; 2]) -> String {
    format!("[[peer]]\nname = \"{name}\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n")
}

/// Describes the leg towards the receiver.
fn far(variant: &Variant) -> String {
    let forward = variant.forward.as_ref().unwrap_or(&variant.sender);
    let rate = variant.rate.as_ref();
    let rate = rate.map_or_else(String::new, |rate| format!("rate = \"{rate}\"\n"));
    leg("far", forward, variant) + &rate
}
