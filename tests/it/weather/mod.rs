//! Bad weather: system calls that fail, and thousands of connections while the daemon is reloaded,
//! paused, killed and flooded; links that go away and come back, and modems that tell of them.

mod auto;
mod dlep;
#[cfg(target_arch = "x86_64")]
mod faults;
mod held_acks;
mod held_attacks;
mod link_attacks;
mod links;
mod outage_again;
mod outage_echoes;
mod outage_lengths;
mod outage_patience;
mod outage_shares;
mod outage_times;
mod outages;
mod soak;
mod take_over;
mod timers;

/// Loses all that comes to a host, or that it sends, unseen by the box.
pub const LOSE: &str = "nft 'add table inet outage; add chain inet outage in { type filter hook prerouting \
                    priority raw; policy drop; }; add chain inet outage out { type filter hook output \
                    priority 0; policy drop; }'";

/// Ends that.
pub const RESTORE: &str = "nft delete table inet outage";
