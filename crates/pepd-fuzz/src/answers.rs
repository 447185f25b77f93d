//! What `pepd status`, `flows` and `top` read of a daemon.

use std::fmt::Debug;

use pepd_admin::wire::{ErrorBody, FlowHistory, FlowList, FlowSnapshot, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads an answer as each kind that there is. What is understood is written such that it is
/// understood again.
pub fn run(bytes: &[u8]) {
    is_stable::<Status>(bytes);
    is_stable::<FlowList>(bytes);
    is_stable::<FlowSnapshot>(bytes);
    is_stable::<FlowHistory>(bytes);
    is_stable::<ErrorBody>(bytes);
}

fn is_stable<T: Debug + Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(bytes) else {
        return;
    };
    let written = serde_json::to_string(&read).expect("no value of ours is not JSON");
    let again: T = serde_json::from_str(&written).expect("what is written is read");
    let again = serde_json::to_string(&again).expect("no value of ours is not JSON");
    // A number may lose its last digit once, and no more.
    let third: T = serde_json::from_str(&again).expect("what is written is read");
    assert_eq!(serde_json::to_string(&third).ok(), Some(again));
}
