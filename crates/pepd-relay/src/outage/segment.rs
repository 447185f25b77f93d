//! Segments of a leg's that the box sends itself.

use std::os::fd::BorrowedFd;

use pepd_packet::Segment;
use pepd_packet::segment::{flag, timestamps};
use pepd_sys::repair::{self, Header, RepairError};
use pepd_sys::tcp_info::TcpInfo;

use super::{Ends, Injector};

/// Sends the first segment of what a leg has under way, if there is anything.
pub(super) fn send_first(
    fd: BorrowedFd<'_>,
    injector: &Injector,
    info: &TcpInfo,
    ends: Ends,
) -> Result<(), RepairError> {
    let most = usize::try_from(info.mss).unwrap_or_default();
    let sent = repair::unacknowledged(fd, most)?;
    let packet = sent.and_then(|(header, data)| segment(header, data, info, ends).packet());
    if let Some(packet) = packet {
        injector.send(&packet, ends.mark)?;
    }
    Ok(())
}

/// Makes the segment with this header, and `data` if there is any, as the leg's socket would.
pub(super) fn segment(
    header: Header,
    data: Vec<u8>,
    info: &TcpInfo,
    Ends { ours, theirs, .. }: Ends,
) -> Segment {
    let window = header.window >> info.receive_scale;
    let push = if data.is_empty() { 0 } else { flag::PSH };
    Segment {
        acknowledgement: header.acknowledgement,
        window: u16::try_from(window).unwrap_or(u16::MAX),
        // The kernel does not tell what the peer's clock said last. The peer takes 0 for nothing said
        // (tcp_ack_update_rtt, net/ipv4/tcp_input.c).
        options: match info.timestamps {
            true => timestamps(header.timestamp, 0),
            false => Vec::new(),
        },
        payload: data,
        ..Segment::new(flag::ACK | push, ours, theirs, header.sequence)
    }
}

#[cfg(test)]
mod tests {
    use pepd_packet::MarkValue;

    use super::*;

    #[test]
    fn it_says_what_the_socket_would() {
        let header = Header {
            sequence: 7,
            acknowledgement: 8,
            window: 100_000,
            timestamp: 9,
        };
        let mut info = TcpInfo {
            timestamps: true,
            receive_scale: 2,
            ..TcpInfo::default()
        };
        let ends = Ends {
            ours: "10.1.0.2:4000".parse().unwrap(),
            theirs: "10.2.0.2:80".parse().unwrap(),
            mark: MarkValue(0),
        };
        let made = segment(header, b"first".to_vec(), &info, ends);
        assert_eq!((made.from, made.to), (ends.ours, ends.theirs));
        assert_eq!((made.sequence, made.acknowledgement), (7, 8));
        assert_eq!(made.flags, flag::ACK | flag::PSH);
        assert_eq!(made.window, 25_000);
        assert_eq!(made.options[4..], [0, 0, 0, 9, 0, 0, 0, 0]);
        assert_eq!(made.payload, b"first");
        (info.timestamps, info.receive_scale) = (false, 0);
        let made = segment(header, Vec::new(), &info, ends);
        assert_eq!((made.flags, made.window), (flag::ACK, u16::MAX));
        assert!(made.options.is_empty());
    }
}
