//! What the kernel knows of a TCP connection (TCP_INFO, tcp(7)).
//!
//! Kernels write as much of `struct tcp_info` (include/uapi/linux/tcp.h) as they have. What
//! came after Linux 4.6 is `None` where the kernel at hand does not write it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::syscall::check;

/// The figures of one socket at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The connection's state (include/net/tcp_states.h).
    pub state: u8,
    /// How the kernel takes what it hears of losses (enum tcp_ca_state, include/uapi/linux/tcp.h).
    pub loss_state: u8,
    /// Whether both ends send timestamps (RFC 7323, section 3).
    pub timestamps: bool,
    /// Whether the peer says what has come besides (SACK, RFC 2018).
    pub sack: bool,
    /// The shift of the windows that the peer announces (RFC 7323, section 2).
    pub send_scale: u8,
    /// The shift of the windows that this end announces (RFC 7323, section 2).
    pub receive_scale: u8,
    /// Smoothed round-trip time (RFC 6298).
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_variation: Duration,
    /// The retransmission timeout, doubled as often as its timer is (RFC 6298, section 5.5).
    pub rto: Duration,
    /// The least round-trip time seen lately (net.ipv4.tcp_min_rtt_wlen); none before the first.
    pub min_rtt: Option<Duration>,
    /// The receiver's own estimate of the round-trip time; none before it has one.
    pub receive_rtt: Option<Duration>,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Largest segment that is sent, bytes.
    pub mss: u32,
    /// Largest packet that the path is known to take (RFC 1191), bytes; 0 where none was sent yet.
    pub path_mtu: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Those of them that have arrived, behind one that has not (RFC 2018).
    pub sacked: u32,
    /// Segments held to be lost.
    pub lost: u32,
    /// Retransmission timeouts in a row, without anything acknowledged in between.
    pub timeouts: u8,
    /// Probes in a row that were not answered: of an idle connection, or of a window that is shut.
    pub probes: u8,
    /// The times that the retransmission timer, or that of window probes, has been doubled.
    pub backoff: u8,
    /// The time since data was sent last, or since it has connected if none was yet, in whole milliseconds;
    /// of what has not connected it says nothing.
    pub since_sending: Duration,
    /// The time since the last data came, in whole milliseconds.
    pub since_data: Duration,
    /// The time since the last acknowledgement came, in whole milliseconds.
    pub since_acknowledgement: Duration,
    /// Segments retransmitted since the start.
    pub retransmitted_segments: u32,
    /// Bytes written that have not been sent once.
    pub unsent: u32,
    /// Bytes that the peer has acknowledged since the start (Linux 4.1). The SYN counts as one: so
    /// it tells whether this was ever a connection, whatever has become of it.
    pub acknowledged_bytes: u64,
    /// Bytes that have come in order since the start (Linux 4.1). The peer's FIN counts as one.
    pub received_bytes: u64,
    /// Pacing rate, bytes per second; none when unlimited.
    pub pacing_rate: Option<u64>,
    /// Segments of data sent since the start, retransmissions with them (Linux 4.6).
    pub data_segments_sent: Option<u32>,
    /// The most recent delivery rate, bytes per second (Linux 4.9); none before the first.
    pub delivery_rate: Option<u64>,
    /// Whether the connection had less to send then than it was let (Linux 4.9).
    pub rate_is_limited: bool,
    /// Segments that have arrived since the start, each once, the SYN with them (Linux 4.18).
    pub delivered_segments: Option<u32>,
    /// Time with data to send or in flight (Linux 4.10).
    pub busy: Option<Duration>,
    /// Part of the busy time that the receiver's window limited (Linux 4.10).
    pub receive_window_limited: Option<Duration>,
    /// Part of the busy time that the send buffer limited (Linux 4.10).
    pub send_buffer_limited: Option<Duration>,
    /// Bytes sent since the start, retransmissions with them (Linux 4.19).
    pub sent_bytes: Option<u64>,
    /// Bytes retransmitted since the start (Linux 4.19).
    pub retransmitted_bytes: Option<u64>,
    /// Segments of which the peer has said that they came twice (DSACK, RFC 2883; Linux 4.19).
    pub doubled_segments: Option<u32>,
    /// The bytes for which the peer has said that it has room (Linux 5.4).
    pub send_window: Option<u32>,
}

impl TcpInfo {
    /// Returns whether it sends again what was lost (RFC 6675), or after a timeout.
    #[must_use]
    pub fn is_mending(&self) -> bool {
        const RECOVERY: u8 = 3; // TCP_CA_Recovery; TCP_CA_Loss is 4
        self.loss_state >= RECOVERY
    }
}

/// Reads the figures of a TCP socket now. A closed connection has them too, until its socket is
/// closed.
pub fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    with_fields(fd, |fields| fields.read())
}

/// Returns the number of connections that may wait for a listener to accept them, as the kernel has
/// cut it (`tcpi_sacked`, tcp_get_info in net/ipv4/tcp.c).
pub fn backlog(listener: BorrowedFd<'_>) -> io::Result<u32> {
    with_fields(listener, |fields| fields.u32(28))
}

fn with_fields<T>(fd: BorrowedFd<'_>, read: impl FnOnce(Fields<'_>) -> Option<T>) -> io::Result<T> {
    // More than Linux 6.18 has (256 bytes); the kernel writes the lesser of the two.
    let mut buffer = [0_u8; 512];
    let mut len = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the buffer, which has that length.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    let written = usize::try_from(len).unwrap_or(0).min(buffer.len());
    read(Fields(&buffer[..written])).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The bytes that the kernel wrote. Offsets are those of `struct tcp_info`, to which the kernel
/// only ever adds at the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Reads the fields; `None` where even the oldest are missing.
    fn read(&self) -> Option<TcpInfo> {
        // TCPI_OPT_… (include/uapi/linux/tcp.h).
        const TIMESTAMPS: u8 = 1;
        const SACK: u8 = 2;
        Some(TcpInfo {
            state: self.u8(0)?,
            loss_state: self.u8(1)?,
            timestamps: self.u8(5)? & TIMESTAMPS != 0,
            sack: self.u8(5)? & SACK != 0,
            send_scale: self.fields_of_four_bits(6)?[0],
            receive_scale: self.fields_of_four_bits(6)?[1],
            rtt: self.micros32(68)?,
            rtt_variation: self.micros32(72)?,
            rto: self.micros32(8)?,
            // ~0 until there is a sample.
            min_rtt: self
                .u32(148)
                .filter(|us| *us != u32::MAX)
                .map(|us| Duration::from_micros(us.into())),
            receive_rtt: self.micros32(92).filter(|rtt| !rtt.is_zero()),
            cwnd: self.u32(80)?,
            mss: self.u32(16)?,
            path_mtu: self.u32(60)?,
            unacked: self.u32(24)?,
            sacked: self.u32(28)?,
            lost: self.u32(32)?,
            timeouts: self.u8(2)?,
            probes: self.u8(3)?,
            backoff: self.u8(4)?,
            since_sending: Duration::from_millis(self.u32(44)?.into()),
            since_data: Duration::from_millis(self.u32(52)?.into()),
            since_acknowledgement: Duration::from_millis(self.u32(56)?.into()),
            retransmitted_segments: self.u32(100)?,
            unsent: self.u32(144)?,
            acknowledged_bytes: self.u64(120)?,
            received_bytes: self.u64(128)?,
            pacing_rate: self.u64(104).filter(|rate| *rate != u64::MAX),
            data_segments_sent: self.u32(156),
            delivery_rate: self.u64(160).filter(|rate| *rate != 0),
            rate_is_limited: self.first_bit(7)?,
            delivered_segments: self.u32(192),
            busy: self.micros64(168),
            receive_window_limited: self.micros64(176),
            send_buffer_limited: self.micros64(184),
            sent_bytes: self.u64(200),
            retransmitted_bytes: self.u64(208),
            doubled_segments: self.u32(216),
            send_window: self.u32(228),
        })
    }

    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// Reads the first field, of one bit, in a byte.
    fn first_bit(&self, at: usize) -> Option<bool> {
        let byte = self.u8(at)?;
        let bit = if cfg!(target_endian = "little") {
            1
        } else {
            0x80
        };
        Some(byte & bit != 0)
    }

    /// Reads the two fields of four bits in a byte, which come as the processor orders its bytes.
    fn fields_of_four_bits(&self, at: usize) -> Option<[u8; 2]> {
        let byte = self.u8(at)?;
        let [low, high] = [byte & 0x0f, byte >> 4];
        Some(match cfg!(target_endian = "little") {
            true => [low, high],
            false => [high, low],
        })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        let bytes = self.0.get(at..at + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn micros32(&self, at: usize) -> Option<Duration> {
        self.u32(at).map(|us| Duration::from_micros(us.into()))
    }

    fn micros64(&self, at: usize) -> Option<Duration> {
        self.u64(at).map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn a_listener_has_the_backlog_that_it_asked_for() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.listen(17).unwrap();
        assert_eq!(backlog(socket.as_fd()).unwrap(), 17);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn a_connection_that_was_reset_was_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let a = TcpStream::connect(address).unwrap();
        let b = listener.accept().unwrap().0;
        socket2::SockRef::from(&b)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop((b, listener));
        a.peek(&mut [0]).unwrap_err();
        assert!(tcp_info(a.as_fd()).unwrap().acknowledged_bytes > 0);

        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.connect(&address.into()).unwrap_err();
        assert_eq!(tcp_info(socket.as_fd()).unwrap().acknowledged_bytes, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn the_kernels_figures_of_a_transfer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut b = listener.accept().unwrap().0;
        a.write_all(&[7; 100_000]).unwrap();
        b.read_exact(&mut [0; 100_000]).unwrap();
        b.write_all(b"thanks").unwrap();
        a.read_exact(&mut [0; 6]).unwrap();
        let info = tcp_info(a.as_fd()).unwrap();
        let most = Duration::from_secs(60);
        assert!(info.rtt > Duration::ZERO && info.rtt < most);
        assert!(info.min_rtt.unwrap() < most);
        assert!(info.rto >= info.rtt && info.rto <= 2 * most, "{info:?}");
        assert!(info.send_window.unwrap() > 0, "{info:?}");
        assert!(info.cwnd >= 2 && info.mss >= 536, "{info:?}");
        // On a busy machine the kernel may probe for a loss that is none.
        let again = info.retransmitted_bytes.unwrap();
        assert_eq!(info.sent_bytes.unwrap() - again, 100_000);
        assert_eq!(info.unsent, 0);
        let (sent, again) = (
            info.data_segments_sent.unwrap(),
            info.retransmitted_segments,
        );
        let first = u64::from(sent - again);
        assert!((1..=100_000).contains(&first), "{info:?}");
        // And the SYN.
        assert_eq!(u64::from(info.delivered_segments.unwrap()), first + 1);
    }

    /// Whoever finds two sockets with bytes on their way from one to the other counts on it.
    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_was_written_and_read_follows_from_the_kernels_counts() {
        use crate::stream::{unacknowledged, unread};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut passive = listener.accept().unwrap().0;
        let written = |socket: &TcpStream| {
            let waiting = unacknowledged(socket.as_fd()).unwrap() as u64;
            tcp_info(socket.as_fd()).unwrap().acknowledged_bytes + waiting
        };
        let read = |socket: &TcpStream| {
            let waiting = unread(socket.as_fd()).unwrap() as u64;
            tcp_info(socket.as_fd()).unwrap().received_bytes - waiting
        };
        // The SYN of whoever has connected is acknowledged like a byte, that of the other is not.
        assert_eq!((written(&active), written(&passive)), (1, 0));
        assert_eq!((read(&active), read(&passive)), (0, 0));
        active.write_all(&[7; 1000]).unwrap();
        passive.read_exact(&mut [0; 400]).unwrap();
        assert_eq!((written(&active), read(&passive)), (1001, 400));
        // A FIN counts where it was sent and, once it has come, where it was received.
        active.shutdown(std::net::Shutdown::Write).unwrap();
        passive.read_exact(&mut [0; 600]).unwrap();
        assert_eq!(passive.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!((written(&active), read(&passive)), (1002, 1001));
        passive.write_all(&[8; 10]).unwrap();
        passive.shutdown(std::net::Shutdown::Write).unwrap();
        active.read_exact(&mut [0; 10]).unwrap();
        assert_eq!(active.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!((written(&passive), read(&active)), (11, 11));
        assert_eq!((written(&active), read(&passive)), (1002, 1001));
    }

    #[test]
    fn what_an_older_kernel_does_not_have_is_none() {
        // Linux 4.6 ended after `tcpi_min_rtt` and two counters.
        let info = Fields(&[0; 160]).read().unwrap();
        assert_eq!((info.delivery_rate, info.busy), (None, None));
        assert_eq!((info.sent_bytes, info.retransmitted_bytes), (None, None));
        assert_eq!(info.send_window, None);
        assert_eq!(Fields(&[0; 60]).read(), None);
    }

    #[test]
    fn no_connection_is_an_error_that_keeps_errno() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = tcp_info(file.as_fd()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
