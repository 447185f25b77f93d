//! Samples of the sockets of live connections: once a second, where something happened.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use pepd_sys::stream;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::{
    CongestionName, ConnectionSample, SAMPLE_INTERVAL, SampleFields, Socket, SocketSample,
    TcpFigures,
};
use socket2::SockRef;
use tokio::time::MissedTickBehavior;

use crate::shared::Context;

/// The shares in which a worker's connections are sampled, so that none waits long while the
/// others are.
const SHARES: u32 = 10;

/// Samples the worker's connections, a share at a time, for as long as the worker lives.
pub(crate) async fn sample_all(context: Arc<Context>) {
    let mut interval = tokio::time::interval(SAMPLE_INTERVAL / SHARES);
    // After a pause the connections are sampled at the usual pace, not all at once.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for share in (0..SHARES as usize).cycle() {
        interval.tick().await;
        let now = Instant::now();
        let table = &context.shared.flows;
        table.sample(context.index, share, SHARES as usize, now, sample);
        context.shared.access_log.report_held_back(now);
    }
}

/// Samples both sockets of a connection, as a worker does once a second for each in which
/// something happened.
pub fn sample(client: &Socket, upstream: &Socket, fields: SampleFields) -> ConnectionSample {
    ConnectionSample {
        client: sample_socket(client.as_fd(), fields.client_unread, fields.congestion),
        upstream: sample_socket(upstream.as_fd(), fields.upstream_unread, fields.congestion),
    }
}

fn sample_socket(fd: BorrowedFd<'_>, unread: bool, congestion: bool) -> SocketSample {
    let info = tcp_info(fd).ok();
    let unread = if unread {
        stream::unread(fd).unwrap_or(0)
    } else {
        0
    };
    SocketSample {
        tcp: info.map(figures),
        congestion: congestion.then(|| congestion_control(fd)).flatten(),
        unsent: info.map_or(0, |info| info.unsent.into()),
        unacknowledged: stream::unacknowledged(fd).unwrap_or(0) as u64,
        unread: unread as u64,
    }
}

fn congestion_control(fd: BorrowedFd<'_>) -> Option<CongestionName> {
    let name = SockRef::from(&fd).tcp_congestion().ok()?;
    Some(CongestionName::new(&name))
}

fn figures(info: TcpInfo) -> TcpFigures {
    let bits = |bytes: u64| bytes as f64 * 8.0;
    TcpFigures {
        rtt: info.rtt.as_secs_f64(),
        rtt_variation: info.rtt_variation.as_secs_f64(),
        min_rtt: info.min_rtt.map(|rtt| rtt.as_secs_f64()),
        cwnd: info.cwnd,
        mss: info.mss,
        unacked: info.unacked,
        lost: info.lost,
        retransmitted_segments: info.retransmitted_segments,
        retransmitted_bytes: info.retransmitted_bytes,
        sent_bytes: info.sent_bytes,
        pacing_rate: info.pacing_rate.map(bits),
        delivery_rate: info.delivery_rate.map(bits),
        busy: info.busy.map(|time| time.as_secs_f64()),
        receive_window_limited: info.receive_window_limited.map(|time| time.as_secs_f64()),
        send_buffer_limited: info.send_buffer_limited.map(|time| time.as_secs_f64()),
    }
}
