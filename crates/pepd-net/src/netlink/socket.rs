//! The socket of a connection to rtnetlink, on which every request is answered.
//!
//! netlink-proto ends a connection as soon as its socket gives an error, and whoever waits for an
//! answer then gets none: rtnetlink takes that for success, and for the end of a list. A rule would
//! stay that is said to be deleted. So an interrupted call is repeated here, one that lacks memory
//! for a moment is made again in the next turn, and where a request cannot be sent, or its answer not
//! be read, it is answered here as the kernel would: with the error.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use netlink_sys::{AsyncSocket, Socket, SocketAddr, TokioSocket};

/// The turns in a row in which a call may lack memory.
const MOST_TURNS: u32 = 64;

/// The length of a message's header (struct nlmsghdr, include/uapi/linux/netlink.h).
const HEADER_BYTES: usize = 16;

/// NLMSG_ERROR, the same file.
const ERROR: u16 = 2;

/// A socket that [`rtnetlink`]'s connections are made on.
pub(crate) struct RouteSocket {
    inner: TokioSocket,
    exchange: Mutex<Exchange>,
}

/// What is under way.
#[derive(Default)]
struct Exchange {
    /// The header of the last request, which may be answered or not.
    last: Option<[u8; HEADER_BYTES]>,
    /// What is to be read before anything of the kernel's.
    answer: Option<Vec<u8>>,
    /// Messages of the kernel's are lost, and that is to be read after the answer.
    is_lossy: bool,
    /// The turns in a row that have lacked memory.
    turns: u32,
}

impl Exchange {
    /// Returns whether the call is to be made again in the next turn.
    fn waits(&mut self, error: &io::Error) -> bool {
        self.turns += 1;
        is_shortage(error) && self.turns <= MOST_TURNS
    }

    /// Takes what there is to be read before anything of the kernel's.
    fn ahead(&mut self) -> Option<io::Result<Vec<u8>>> {
        let answer = self.answer.take().map(Ok);
        answer.or_else(|| {
            let lost = io::Error::from_raw_os_error(libc::ENOBUFS);
            std::mem::take(&mut self.is_lossy).then_some(Err(lost))
        })
    }

    /// Notes that messages are lost. The answer to the last request may be one of them; and whoever
    /// follows changes has to hear of it in any case.
    fn lose(&mut self, error: &io::Error) {
        self.fail(error);
        self.is_lossy = true;
    }

    /// Answers the last request with an error, if there is one that nobody has answered here.
    fn fail(&mut self, error: &io::Error) -> bool {
        self.turns = 0;
        self.answer = self.last.take().map(|request| refusal(&request, error));
        self.answer.is_some()
    }
}

impl RouteSocket {
    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncSocket for RouteSocket {
    fn socket_ref(&self) -> &Socket {
        self.inner.socket_ref()
    }

    fn socket_mut(&mut self) -> &mut Socket {
        self.inner.socket_mut()
    }

    fn new(protocol: isize) -> io::Result<Self> {
        Ok(Self {
            inner: TokioSocket::new(protocol)?,
            exchange: Mutex::default(),
        })
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send_to(cx, bytes, &SocketAddr::new(0, 0))
    }

    fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        to: &SocketAddr,
    ) -> Poll<io::Result<usize>> {
        loop {
            let sent = ready!(self.inner.poll_send_to(cx, bytes, to));
            let mut exchange = self.exchange();
            let error = match sent {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
                Ok(length) => {
                    exchange.turns = 0;
                    exchange.last = bytes.first_chunk().copied();
                    return Poll::Ready(Ok(length));
                }
            };
            cx.waker().wake_by_ref();
            if exchange.waits(&error) {
                return Poll::Pending;
            }
            exchange.last = bytes.first_chunk().copied();
            exchange.fail(&error);
            // The answer is there.
            return Poll::Ready(Ok(bytes.len()));
        }
    }

    fn poll_recv<B: BufMut>(&self, cx: &mut Context<'_>, buffer: &mut B) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buffer).map_ok(drop)
    }

    fn poll_recv_from<B: BufMut>(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut B,
    ) -> Poll<io::Result<SocketAddr>> {
        loop {
            if let Some(ahead) = self.exchange().ahead() {
                let read = ahead.map(|answer| {
                    buffer.put_slice(&answer);
                    SocketAddr::new(0, 0)
                });
                return Poll::Ready(read);
            }
            let received = ready!(self.inner.poll_recv_from(cx, buffer));
            let mut exchange = self.exchange();
            let error = match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
                Ok(from) => {
                    exchange.turns = 0;
                    return Poll::Ready(Ok(from));
                }
            };
            if error.raw_os_error() == Some(libc::ENOBUFS) {
                exchange.lose(&error);
                continue;
            }
            if exchange.waits(&error) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !exchange.fail(&error) {
                return Poll::Ready(Err(error));
            }
        }
    }

    fn poll_recv_from_full(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Vec<u8>, SocketAddr)>> {
        loop {
            match ready!(self.inner.poll_recv_from_full(cx)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return Poll::Ready(received),
            }
        }
    }
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

/// Writes the kernel's answer to a request that it has refused (struct nlmsgerr).
fn refusal(request: &[u8; HEADER_BYTES], error: &io::Error) -> Vec<u8> {
    // Every error here is a system call's; EIO stands in for one without errno.
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let length = u32::try_from(2 * HEADER_BYTES + size_of::<i32>()).unwrap_or_default();
    let mut answer = length.to_ne_bytes().to_vec();
    answer.extend(ERROR.to_ne_bytes());
    answer.extend(0_u16.to_ne_bytes());
    // The number of the request, and of its port.
    answer.extend(&request[8..]);
    answer.extend((-errno).to_ne_bytes());
    answer.extend(request);
    answer
}

#[cfg(test)]
mod tests {
    use pepd_sys::nfnetlink::{Reply, replies};

    use super::*;

    /// A request with this number.
    fn request(sequence: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = 16;
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        header
    }

    #[test]
    fn a_request_that_cannot_be_sent_is_refused_by_its_number() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let answer = refusal(&request(7), &error);
        let replies: Vec<_> = replies(&answer).collect();
        assert!(
            matches!(
                replies[..],
                [Reply::Refused {
                    sequence: 7,
                    errno: libc::EPERM
                }]
            ),
            "{replies:?}"
        );
    }

    #[test]
    fn memory_is_waited_for_and_not_for_ever() {
        let mut exchange = Exchange {
            last: Some(request(1)),
            ..Exchange::default()
        };
        let memory = io::Error::from_raw_os_error(libc::ENOMEM);
        assert!((0..MOST_TURNS).all(|_| exchange.waits(&memory)));
        assert!(!exchange.waits(&memory) && exchange.fail(&memory));
        assert!(exchange.answer.take().is_some());
        // Once: then the connection ends.
        assert!(!exchange.fail(&memory));
        let other = io::Error::from_raw_os_error(libc::EPERM);
        assert!(!exchange.waits(&other));
    }

    #[test]
    fn that_messages_are_lost_is_told_whether_or_not_a_request_is_refused_for_it() {
        let lost = io::Error::from_raw_os_error(libc::ENOBUFS);
        for last in [Some(request(7)), None] {
            let mut exchange = Exchange {
                last,
                ..Exchange::default()
            };
            exchange.lose(&lost);
            let refused = last.map(|request| refusal(&request, &lost));
            if refused.is_some() {
                assert_eq!(exchange.ahead().and_then(Result::ok), refused);
            }
            let told = exchange.ahead().and_then(Result::err);
            assert_eq!(told.and_then(|it| it.raw_os_error()), Some(libc::ENOBUFS));
            assert!(exchange.ahead().is_none());
        }
    }
}
