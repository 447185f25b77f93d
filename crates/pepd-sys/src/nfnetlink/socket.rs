//! The socket that messages go through.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::message;
use crate::syscall::retry_on_intr;

/// A netlink socket that is connected to netfilter.
///
/// The kernel handles what is sent within send(2): a reply is there when [`send`](Self::send)
/// returns.
#[derive(Debug)]
pub struct Socket(netlink_sys::Socket);

impl Socket {
    /// Opens the socket. Replies do not repeat the request, and fit a small buffer
    /// (NETLINK_CAP_ACK).
    ///
    /// # Errors
    /// As socket(2), bind(2) and setsockopt(2); EPROTONOSUPPORT: the kernel has no nfnetlink.
    pub fn open() -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        Ok(Self(socket))
    }

    /// Subscribes to a group of messages that the kernel sends unasked (NFNLGRP_…). Those that find
    /// the socket's buffer full are lost, and the next [`receive`](Self::receive) fails with
    /// ENOBUFS.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.0.add_membership(group)
    }

    /// Makes a send that would have to wait fail with EAGAIN.
    pub(crate) fn set_non_blocking(&self) -> io::Result<()> {
        self.0.set_non_blocking(true)
    }

    /// Passes over messages that found no room in the socket's buffer (NETLINK_NO_ENOBUFS).
    pub(crate) fn ignore_overflow(&mut self) -> io::Result<()> {
        self.0.set_no_enobufs(true)
    }

    /// Sends messages in one datagram.
    ///
    /// # Errors
    /// As send(2), but for EINTR. What the kernel says about the messages is in the replies.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        retry_on_intr(|| self.0.send(bytes, 0)).map(drop)
    }

    /// Sends one request, and reads the reply to it.
    ///
    /// # Errors
    /// What the kernel refuses it for; EPROTO: it has not replied. Otherwise as send(2).
    pub(crate) fn request(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes)?;
        let mut reply = [0; 512];
        let len = self.receive(&mut reply)?;
        message::acknowledged(reply.get(..len).unwrap_or_default())
    }

    /// Reads one datagram into `buffer`, and cuts off what does not fit; gives its length.
    ///
    /// # Errors
    /// EAGAIN where there is none: it waits for nothing. Otherwise as recv(2), but for EINTR.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = buffer.len();
        let len = retry_on_intr(|| {
            let mut rest = &mut *buffer;
            self.0.recv(&mut rest, libc::MSG_DONTWAIT)
        })?;
        Ok(len.min(size))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
