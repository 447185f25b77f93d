//! The system calls whose failure an error names.

use std::fmt;

/// A system call on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// socket(2).
    Socket,
    /// bind(2).
    Bind,
    /// listen(2).
    Listen,
    /// connect(2).
    Connect,
    /// send(2), which also sends the SYN that a Fast Open connect has deferred.
    Send,
    /// epoll_ctl(2).
    EpollCtl,
    /// getsockopt(2).
    GetSockOpt,
}

/// Its name in the manual pages, without the section.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "socket",
            Self::Bind => "bind",
            Self::Listen => "listen",
            Self::Connect => "connect",
            Self::Send => "send",
            Self::EpollCtl => "epoll_ctl",
            Self::GetSockOpt => "getsockopt",
        })
    }
}
