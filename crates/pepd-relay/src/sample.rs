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

use crate::pipe_pool::PIPE_BYTES;
use crate::shared::Context;

/// The shares in which a worker's connections are sampled, so that none waits long while the
/// others are.
const SHARES: u32 = 10;

/// Samples the worker's connections, a share at a time, for as long as the worker lives.
pub(crate) async fn sample_all(context: Arc<Context>) {
    let mut interval = tokio::time::interval(SAMPLE_INTERVAL / SHARES);
    // After a pause the connections are sampled at the usual pace, not all at once.
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut noted = 0;
    for share in (0..SHARES as usize).cycle() {
        interval.tick().await;
        let now = Instant::now();
        context.flights.look(&context.shared.first_windows, now);
        sample_share(&context, share, now);
        if share == 0 && context.shared.admission.limits().memory.is_some() {
            let kernel = context.shared.settings.load().kernel_buffers;
            let admission = &context.shared.admission;
            context.watched.look_at_idle(admission, kernel, now);
        }
        let (lent, _) = context.pool.usage();
        let pipes = (lent * PIPE_BYTES) as u64;
        let before = std::mem::replace(&mut noted, pipes);
        context.shared.admission.note_pipes(before, pipes);
        context.shared.access_log.report_held_back(now);
    }
}

/// Samples a share of the worker's connections.
fn sample_share(context: &Context, share: usize, now: Instant) {
    let admission = &context.shared.admission;
    let kernel = context.shared.settings.load().kernel_buffers;
    let read = |id, client: &Socket, upstream: &Socket, fields: SampleFields| {
        let infos = [client, upstream].map(|socket| tcp_info(socket.as_fd()).ok());
        let memory = admission.memory();
        let buffers = context.watched.with(id, |holding| {
            let infos = infos.each_ref().map(Option::as_ref);
            holding.tell(infos, &context.shared.first_windows, now);
            holding.look(infos, kernel, &memory, now)
        });
        let [client_has, upstream_has] = buffers.unwrap_or_default();
        let [of_client, of_upstream] = infos;
        let read = |socket: &Socket, info, unread, buffers| SocketSample {
            buffers,
            ..sample_socket(socket.as_fd(), info, unread, fields.congestion)
        };
        ConnectionSample {
            client: read(client, of_client, fields.client_unread, client_has),
            upstream: read(upstream, of_upstream, fields.upstream_unread, upstream_has),
        }
    };
    let flows = &context.shared.flows;
    flows.sample(context.index, share, SHARES as usize, now, read);
}

/// Samples both sockets of a connection, as a worker does once a second for each in which
/// something happened.
pub fn sample(client: &Socket, upstream: &Socket, fields: SampleFields) -> ConnectionSample {
    let [client, upstream] = [
        (client, fields.client_unread),
        (upstream, fields.upstream_unread),
    ]
    .map(|(socket, unread)| {
        let info = tcp_info(socket.as_fd()).ok();
        sample_socket(socket.as_fd(), info, unread, fields.congestion)
    });
    ConnectionSample { client, upstream }
}

fn sample_socket(
    fd: BorrowedFd<'_>,
    info: Option<TcpInfo>,
    unread: bool,
    congestion: bool,
) -> SocketSample {
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
        buffers: None,
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
        sent_segments: info.data_segments_sent,
        delivered_segments: info.delivered_segments,
        pacing_rate: info.pacing_rate.map(bits),
        delivery_rate: info.delivery_rate.map(bits),
        busy: info.busy.map(|time| time.as_secs_f64()),
        receive_window_limited: info.receive_window_limited.map(|time| time.as_secs_f64()),
        send_buffer_limited: info.send_buffer_limited.map(|time| time.as_secs_f64()),
    }
}
