//! Opening the upstream leg of a held SYN, and what its fate means for the client.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pepd_packet::{IcmpError, Mark, Syn};
use pepd_sys::sockopt::{self, OptionError};
use pepd_sys::stream;
use pepd_sys::tcp_info::tcp_info;
use pepd_telemetry::UnsplitReason;
use socket2::{Domain, SockRef, Socket};
use tokio::io::Interest;

use super::answered_leg::AnsweredLeg;
use super::dial_handle::DialedLeg;
use super::event::Ticket;
use super::verdict::{SynVerdict, Unreachable};
use crate::call::Call;
use crate::connection::leg::LegIo as _;
use crate::connection::leg_socket::LegSocket;
use crate::connection::upstream::{self, UpstreamError};
use crate::settings::Leg;
use crate::shared::{Context, Shared};
use crate::sockopts;

/// Dials the destination of a held SYN, and gives the SYN its verdict as that answers.
pub(super) async fn dial(context: Arc<Context>, syn: Syn, ticket: Ticket) {
    let shared = &context.shared;
    let flow = syn.four_tuple;
    let opened = if shared.admission.source_is_full(flow.client.ip()) {
        // The capture has not heard yet.
        Err(SynVerdict::Bypass(UnsplitReason::SourceFull))
    } else {
        match open_by_its_link(&context, &syn, ticket).await {
            Ok(upstream) => await_turn(shared, upstream, flow.client.ip()).await,
            Err(verdict) => Err(verdict),
        }
    };
    let verdict = match opened {
        Ok(upstream) => {
            // Entered first: the listener may accept before the verdict returns.
            let answered = shared
                .handshakes
                .answered(flow, ticket, upstream, Instant::now());
            // Otherwise the flow was evicted; dropping the leg resets it.
            if let Ok((packet, verdict)) = answered {
                shared.decide(packet, verdict);
            }
            return;
        }
        Err(verdict) => verdict,
    };
    tracing::debug!(client = %flow.client, destination = %flow.server, decision = ?verdict, "no upstream leg");
    let decided = shared
        .handshakes
        .dial_failed(flow, ticket, verdict, Instant::now());
    if let Some((packet, verdict)) = decided {
        shared.decide(packet, verdict);
    }
    shared.note_pending();
}

/// Opens the upstream leg, once its link is there, or says what became of that.
async fn open_by_its_link(
    context: &Context,
    syn: &Syn,
    ticket: Ticket,
) -> Result<AnsweredLeg, SynVerdict> {
    let shared = &context.shared;
    let settings = shared.settings.load_full();
    let leg = settings
        .leg_towards(syn.four_tuple.server.ip())
        .unwrap_or(&shared.unnamed_leg);
    let claimed_mark = settings.claimed_mark(leg);
    let _newcomer = shared.links.dial(&leg.name);
    let mut returns = shared.links.wait();
    loop {
        let opened = tokio::select! {
            biased;
            opened = open(context, syn, ticket, leg, claimed_mark) => opened,
            // Anew: the SYN that was lost would be sent again only when the kernel's doubled timer runs
            // out. What is dropped has not been answered, and takes no answer any more.
            () = returns.of(&leg.name) => continue,
        };
        // While the link is gone this is the word of this host, which has no way there just now (nobody
        // answers for the next hop) or hears nothing, and not that of the destination. When the client has given up this is
        // ended.
        let waits = matches!(
            opened,
            Err(SynVerdict::Unreachable(_) | SynVerdict::Silence)
        );
        if !waits || !shared.links.is_gone(&leg.name) {
            return opened;
        }
        returns.of(&leg.name).await;
    }
}

/// Waits until its client may come. Where its source has as many connections as it may, the leg is
/// reset, whose destination has not heard that its answer arrived, and the SYN is routed behind that.
async fn await_turn(
    shared: &Shared,
    mut upstream: AnsweredLeg,
    client: IpAddr,
) -> Result<AnsweredLeg, SynVerdict> {
    if upstream.claimed_mark.is_none() {
        // Its destination has a connection already, and maybe what the client said first.
        return Ok(upstream);
    }
    match shared.admission.turn(client).await {
        Some(coming) => {
            upstream.coming = Some(coming);
            Ok(upstream)
        }
        None => Err(SynVerdict::Bypass(UnsplitReason::SourceFull)),
    }
}

/// Opens the upstream leg, or says what that means for the client.
async fn open(
    context: &Context,
    syn: &Syn,
    ticket: Ticket,
    leg: &Leg,
    claimed_mark: Option<Mark>,
) -> Result<AnsweredLeg, SynVerdict> {
    let shared = &context.shared;
    let not_possible = |_| SynVerdict::Bypass(UnsplitReason::NotPossible);
    let domain = Domain::for_address(syn.four_tuple.server);
    // Only where the client has proved its address: what it says goes out with a cookie that the
    // destination gave to this box for it.
    let first = syn.data.as_ref().filter(|data| {
        leg.fast_open
            && shared
                .fast_open_key
                .vouches_for(syn.four_tuple, data.cookie)
    });
    let first = first.map_or(&[][..], |data| &data.bytes);
    let (socket, sent) = connect(syn, first, leg, domain).await?;
    let mut socket = LegSocket::register(socket.into())
        .await
        .map_err(not_possible)?;
    let mut unanswered = Unanswered(socket.watch());
    let leg_sent = DialedLeg::new(context.index, socket.watch(), sent);
    let flow = syn.four_tuple;
    shared
        .handshakes
        .leg_sent(flow, ticket, sent, leg_sent, Instant::now());
    let answered = socket.ready(Some(Interest::WRITABLE));
    if tokio::time::timeout(leg.connect_timeout, answered)
        .await
        .is_err()
    {
        return Err(SynVerdict::Silence);
    }
    // A leg that was connected and has been reset since is the relay's, which finds the error
    // where it is: the client is connected and reset, in this order.
    let connected = || tcp_info(socket.as_fd()).is_ok_and(|info| info.acknowledged_bytes > 0);
    if socket.has_failed()
        && !connected()
        && let Some(failure) = socket.failure()
    {
        let error = stream::icmp_error(socket.as_fd());
        return Err(after_sending(&failure.as_error(), error));
    }
    // An established connection survives ICMP errors (RFC 1122, section 4.2.3.9).
    keep_errors(&socket.as_fd(), domain, false)
        .map_err(|_| SynVerdict::Bypass(UnsplitReason::NotPossible))?;
    unanswered.is_answered();
    Ok(AnsweredLeg {
        socket,
        worker: context.index,
        sent,
        claimed_mark: claimed_mark.filter(|_| first.is_empty()),
        coming: None,
    })
}

/// The socket of a leg that has sent its SYN: when this is dropped it takes no answer any more.
///
/// To close its descriptor is not enough. A program that is being started has a copy of it until it
/// is executed, and meanwhile the socket would reset what answers the client's own SYN. `shutdown`
/// disconnects a socket in SYN-SENT whoever else has it, and sends nothing for any other
/// (inet_shutdown, net/ipv4/af_inet.c).
struct Unanswered(Weak<pepd_telemetry::Socket>);

impl Unanswered {
    /// Leaves the socket as it is.
    fn is_answered(&mut self) {
        self.0 = Weak::<OwnedFd>::new();
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(socket) = self.0.upgrade() {
            // One that has failed is not connected.
            let _ = SockRef::from(&socket.as_fd()).shutdown(Shutdown::Read);
        }
    }
}

/// Sends the SYN, with as much of `first` as the kernel puts into it. Where the very 4-tuple is
/// taken, it tries again for a moment: the socket of an aborted dial, or of a connection that
/// has just been reset, is about to go.
async fn connect(
    syn: &Syn,
    first: &[u8],
    leg: &Leg,
    domain: Domain,
) -> Result<(Socket, usize), SynVerdict> {
    const PAUSES: [u64; 6] = [1, 3, 10, 30, 60, 100];
    let mut pauses = PAUSES.into_iter().map(Duration::from_millis);
    loop {
        // A socket that failed to connect keeps its port: a new one is needed.
        let socket = sockopts::new_socket(domain)
            .map_err(|_| SynVerdict::Bypass(UnsplitReason::NotPossible))?;
        keep_errors(&socket, domain, true)
            .map_err(|_| SynVerdict::Bypass(UnsplitReason::NotPossible))?;
        let verdict = match upstream::connect_as(&socket, syn, first, leg) {
            Ok(sent) => return Ok((socket, sent)),
            Err(error) => before_sending(&error),
        };
        match (verdict, pauses.next()) {
            (SynVerdict::Split, Some(pause)) => {
                drop(socket);
                tokio::time::sleep(pause).await;
            }
            _ => return Err(verdict),
        }
    }
}

fn keep_errors(socket: &impl AsFd, domain: Domain, keep: bool) -> Result<(), OptionError> {
    if domain == Domain::IPV4 {
        sockopt::set_receive_errors_v4(socket.as_fd(), keep.into())
    } else {
        sockopt::set_receive_errors_v6(socket.as_fd(), keep.into())
    }
}

/// Returns what it means that not even a SYN could be sent.
fn before_sending(error: &UpstreamError) -> SynVerdict {
    match error {
        // The very 4-tuple exists on this host. Either this SYN belongs to a connection that is
        // split already, and the kernel takes it there, or to a new one after it, whose client
        // is served from another port. It must not be routed: its answers would end in the
        // old socket.
        // A SYN with data is sent by send(2).
        UpstreamError::Call {
            call: Call::Connect | Call::Send,
            source,
        } if source.kind() == io::ErrorKind::AddrNotAvailable => SynVerdict::Split,
        // The port is another program's, there is no route (routing it gives the very ICMP error
        // that the client would get without pepd), or descriptors have run out.
        _ => SynVerdict::Bypass(UnsplitReason::NotPossible),
    }
}

/// Returns what the end of the dial means: the ICMP error where there was one, else the errno.
fn after_sending(error: &io::Error, icmp: Option<IcmpError>) -> SynVerdict {
    if let Some(unreachable) = icmp.and_then(unreachable) {
        return SynVerdict::Unreachable(unreachable);
    }
    match error.kind() {
        // ECONNRESET: the peer was about to open the same connection, and changed its mind.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => SynVerdict::Refused,
        io::ErrorKind::NetworkUnreachable => SynVerdict::Unreachable(Unreachable::Network),
        io::ErrorKind::HostUnreachable => SynVerdict::Unreachable(Unreachable::Host),
        io::ErrorKind::PermissionDenied => SynVerdict::Unreachable(Unreachable::Prohibited),
        _ => SynVerdict::Silence,
    }
}

/// Returns the nearest of the errors that a client can be given: the one that gives it the same
/// errno (icmp_err_convert in net/ipv4/icmp.c, icmpv6_err_convert in net/ipv6/icmp.c). None where
/// the error does not end a connection attempt.
pub(super) fn unreachable(error: IcmpError) -> Option<Unreachable> {
    const DESTINATION_UNREACHABLE: u8 = 3;
    const TIME_EXCEEDED: u8 = 11;
    const V6_UNREACHABLE: u8 = 1;
    const V6_TIME_EXCEEDED: u8 = 3;
    match error {
        IcmpError::V4 {
            kind: DESTINATION_UNREACHABLE,
            code,
        } => match code {
            0 | 6 | 9 | 11 => Some(Unreachable::Network),
            2 | 3 => Some(Unreachable::Port),
            // Fragmentation needed: a smaller packet follows.
            4 => None,
            10 | 13 => Some(Unreachable::Prohibited),
            _ => Some(Unreachable::Host),
        },
        IcmpError::V6 {
            kind: V6_UNREACHABLE,
            code,
        } => match code {
            0 => Some(Unreachable::Network),
            1 | 5 | 6 => Some(Unreachable::Prohibited),
            4 => Some(Unreachable::Port),
            _ => Some(Unreachable::Host),
        },
        IcmpError::V4 {
            kind: TIME_EXCEEDED,
            ..
        }
        | IcmpError::V6 {
            kind: V6_TIME_EXCEEDED,
            ..
        } => Some(Unreachable::Host),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(kind: u8, code: u8) -> Option<Unreachable> {
        unreachable(IcmpError::V4 { kind, code })
    }

    #[test]
    fn an_icmp_error_keeps_its_errno() {
        assert_eq!(v4(3, 0), Some(Unreachable::Network));
        assert_eq!(v4(3, 1), Some(Unreachable::Host));
        assert_eq!(v4(3, 3), Some(Unreachable::Port));
        assert_eq!(v4(3, 13), Some(Unreachable::Prohibited));
        assert_eq!(v4(3, 4), None, "path MTU discovery");
        assert_eq!(v4(11, 0), Some(Unreachable::Host));
        assert_eq!(v4(5, 1), None, "a redirect");
        let v6 = |kind, code| unreachable(IcmpError::V6 { kind, code });
        assert_eq!(v6(1, 0), Some(Unreachable::Network));
        assert_eq!(v6(1, 1), Some(Unreachable::Prohibited));
        assert_eq!(v6(1, 3), Some(Unreachable::Host));
        assert_eq!(v6(1, 4), Some(Unreachable::Port));
        assert_eq!(v6(2, 0), None, "path MTU discovery");
    }

    #[test]
    fn a_rst_is_refused_and_an_icmp_error_is_not() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(after_sending(&refused, None), SynVerdict::Refused);
        let port = IcmpError::V4 { kind: 3, code: 3 };
        assert_eq!(
            after_sending(&refused, Some(port)),
            SynVerdict::Unreachable(Unreachable::Port)
        );
        let timeout = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        assert_eq!(after_sending(&timeout, None), SynVerdict::Silence);
    }
}
