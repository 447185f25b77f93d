//! Sizes of buffers, in words.

/// Returns what to set where a leg's buffer is too small, and nothing says by how much.
pub(super) fn more(name: &str, buffer: u64) -> String {
    let least = size(buffer.saturating_mul(2));
    format!(
        "set [leg.{name}] buffer = \"auto\", which follows what its path needs, or \"{least}\" or more"
    )
}

/// Writes bytes as the configuration does: no less than they are.
pub(super) fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    if bytes >= 10 * MIB || (bytes >= MIB && bytes.is_multiple_of(MIB)) {
        format!("{}MiB", bytes.div_ceil(MIB))
    } else {
        format!("{}KiB", bytes.div_ceil(KIB))
    }
}

/// Returns no fewer bytes than these.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and the product of a rate and a time is not negative"
)]
pub(super) fn ceil(bytes: f64) -> u64 {
    bytes.ceil() as u64
}
