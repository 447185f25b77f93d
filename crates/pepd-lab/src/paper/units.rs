//! Times and sizes as the files write them.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

/// Reads a time as people write it: `200ms`.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(D::Error::custom)
}

/// Reads a size as people write it: `64KiB`.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let size: bytesize::ByteSize = text.parse().map_err(D::Error::custom)?;
    Ok(Some(size.as_u64()))
}
