//! What comes back through a tunnel to a box's probes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use echo::Echo;

#[path = "../../../src/daemon/peers/echo.rs"]
#[allow(dead_code, unreachable_pub, reason = "a file of the daemon's")]
mod echo;

/// The requests to a peer of either family, as one process has them.
static ECHOES: Mutex<Option<[Echo; 2]>> = Mutex::new(None);

/// Nobody who has not seen a request answers it; who has, answers with whatever header before and
/// behind it.
pub fn run(bytes: &[u8]) {
    let mut echoes = ECHOES.lock().unwrap_or_else(PoisonError::into_inner);
    let echoes = echoes.get_or_insert_with(|| {
        let v4 = |last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        let v6 = |last| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        [Echo::new(v4(1), v4(2)), Echo::new(v6(1), v6(2))]
    });
    for echo in echoes.iter() {
        assert_eq!(echo.answers(bytes), None);
    }
    let [v4, v6] = echoes;
    let mut reply = v4.next();
    reply[0] = 0;
    let header = [&[0x45][..], &[0; 19]].concat();
    assert_eq!(
        v4.answers(&[&header, &reply[..]].concat()),
        Some(v4.sequence())
    );
    assert_eq!(v4.answers(&[&header, bytes].concat()), None);
    let mut reply = v6.next().split_off(40);
    reply[0] = 129;
    assert_eq!(v6.answers(&reply), Some(v6.sequence()));
    reply.extend(bytes);
    assert_eq!(v6.answers(&reply).is_some(), bytes.is_empty());
}
