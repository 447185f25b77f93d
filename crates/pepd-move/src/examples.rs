//! Connections for tests.

use std::time::Duration;

use pepd_packet::FourTuple;
use pepd_packet::snapshot::{
    Agreed, Buffers, Fin, Receiving, Sending, Snapshot, SplitSnapshot, WaySnapshot, WayState,
    Windows,
};

use crate::wire::{Offered, Translated};

/// A connection's addresses: of IPv6 where the number is odd.
pub(crate) fn flow(number: u16) -> FourTuple {
    let text = match number % 2 {
        0 => ["10.1.0.2", "10.2.0.3"],
        _ => ["[fd00:a::2]", "[fd00:b::3]"],
    };
    let address = |ip: &str, port: u16| format!("{ip}:{port}").parse().unwrap();
    FourTuple {
        client: address(text[0], 40_000 + number),
        server: address(text[1], 443),
    }
}

/// The same as it is offered: its source is translated where the number can be divided by three.
pub(crate) fn offered(number: u16) -> Offered {
    let flow = flow(number);
    let translated = number.is_multiple_of(3).then(|| Translated {
        source: std::net::SocketAddr::new(flow.server.ip(), 1024 + number),
        own: number.is_multiple_of(2),
    });
    Offered { flow, translated }
}

fn leg(local: std::net::SocketAddr, peer: std::net::SocketAddr) -> Snapshot {
    Snapshot {
        local,
        peer,
        traffic_class: 0xb8,
        agreed: Agreed {
            mss: 1460,
            send_scale: 7,
            receive_scale: 14,
            sack: true,
            timestamp: Some(0xdead_beef),
        },
        sending: Sending {
            sequence: 0xffff_fff0,
            sent: b"sent".to_vec(),
            unsent: b"and not sent".to_vec(),
            fin: Fin::Waits,
        },
        receiving: Receiving {
            next: 12,
            unread: b"unread".to_vec(),
            ended: true,
        },
        windows: Windows {
            updated_by: 1,
            send: 65_535,
            largest: 70_000,
            receive: 1 << 20,
            announced_at: 11,
        },
        buffers: Buffers {
            receive: 131_072,
            send: 87_040,
            receive_fixed: true,
            send_fixed: false,
        },
    }
}

/// A connection with something everywhere.
pub(crate) fn connection(flow: FourTuple) -> SplitSnapshot {
    let way = |state, bytes: &[u8]| WaySnapshot {
        state,
        delivered: 1 << 40,
        in_pipe: bytes.to_vec(),
    };
    SplitSnapshot {
        flow,
        age: Duration::from_millis(123_456),
        early: false,
        legs: [leg(flow.server, flow.client), leg(flow.client, flow.server)],
        ways: [
            way(WayState::Running, b"in the pipe"),
            way(WayState::ShuttingDown, &[7; 150_000]),
        ],
    }
}
