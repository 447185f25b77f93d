//! What connection tracking knows of a connection, and is told of one that comes from another box: its source address
//! and port may become others here, and what it has not seen from the beginning it may take for invalid.

mod message;

use std::io;
use std::net::{IpAddr, SocketAddr};

use pepd_packet::FourTuple;
use pepd_sys::nfnetlink::{MessageType, Reply, Socket, Subsystem, messages, replies};

use self::message::{IPCTNL_MSG_CT_NEW, Request, answers, request};
use crate::iptables::tables::has_table;
use crate::nft::operators;
use crate::prefix::Family;

/// The room for an answer, of which there is one.
const ANSWER: usize = 16 << 10;

/// What becomes of the addresses and ports of a connection that this host opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// They stay as they are.
    None,
    /// Its source becomes this one (`snat`, `masquerade`).
    Source(SocketAddr),
    /// Its destination becomes another one (`dnat` in `output`).
    Destination,
}

/// A socket on which connection tracking is spoken to.
#[derive(Debug)]
pub struct Translations {
    socket: Socket,
    sequence: u32,
}

impl Translations {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        let socket = Socket::open()?;
        let sequence = 0;
        Ok(Self { socket, sequence })
    }

    /// Returns what becomes of a connection whose packets leave this host as `flow` has them; none if nobody tracks it.
    ///
    /// # Errors
    ///
    /// Where the kernel does not say.
    pub fn find(&mut self, flow: &FourTuple) -> io::Result<Option<Translation>> {
        let sent = self.send(Request::Get, flow)?;
        let mut buffer = vec![0; ANSWER];
        loop {
            let length = self.socket.receive(&mut buffer)?;
            let answer = buffer.get(..length).unwrap_or_default();
            for reply in replies(answer) {
                if let Reply::Refused { sequence, errno } = reply
                    && sequence == sent
                {
                    return match errno {
                        libc::ENOENT => Ok(None),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    };
                }
            }
            let wanted = MessageType::of(Subsystem::CONNTRACK, IPCTNL_MSG_CT_NEW);
            let mut found = messages(answer);
            let found = found.find(|it| it.kind == wanted && it.sequence == sent);
            if let Some(found) = found {
                let answers = answers(found.attributes().into_iter().flatten(), flow);
                let answers = answers.ok_or(io::Error::from_raw_os_error(libc::EPROTO))?;
                return Ok(Some(translation(flow, answers)));
            }
        }
    }

    /// Tells connection tracking of an established connection, whose source becomes `source` if that is not the one
    /// that it has, in place of what it knew; gives whether it knew something. Windows that it has not seen make nothing
    /// of it invalid.
    ///
    /// # Errors
    ///
    /// EEXIST where another connection has these addresses and ports; otherwise what the kernel refuses it for.
    pub fn enter(&mut self, flow: &FourTuple, source: Option<SocketAddr>) -> io::Result<bool> {
        let was_known = self.forget(flow)?;
        self.told(Request::Enter(source), flow)?;
        Ok(was_known)
    }

    /// Has connection tracking forget a connection; gives whether it knew it.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses it.
    pub fn forget(&mut self, flow: &FourTuple) -> io::Result<bool> {
        match self.told(Request::Forget, flow) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has connection tracking keep a connection for days although it sees nothing of it, so that no other one gets the
    /// address and port to which it is translated.
    ///
    /// # Errors
    ///
    /// Where the kernel refuses it, or does not know the connection.
    pub fn keep(&mut self, flow: &FourTuple) -> io::Result<()> {
        self.told(Request::Keep, flow)
    }

    fn send(&mut self, what: Request, flow: &FourTuple) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&request(what, flow, self.sequence))?;
        Ok(self.sequence)
    }

    /// Has something done, and waits for the reply: it is there already.
    fn told(&mut self, what: Request, flow: &FourTuple) -> io::Result<()> {
        let sent = self.send(what, flow)?;
        let mut buffer = [0; 1024];
        loop {
            let length = self.socket.receive(&mut buffer)?;
            for reply in replies(buffer.get(..length).unwrap_or_default()) {
                match reply {
                    Reply::Done { sequence } if sequence == sent => return Ok(()),
                    Reply::Refused { sequence, errno } if sequence == sent => {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Tells what becomes of a connection, by what its answers have.
fn translation(flow: &FourTuple, answers: FourTuple) -> Translation {
    if answers.client != flow.server {
        Translation::Destination
    } else if answers.server != flow.client {
        Translation::Source(answers.server)
    } else {
        Translation::None
    }
}

/// Tells whether this host translates addresses of the family of this one, by a chain of nft's or iptables': without one, what
/// connection tracking is told of a source that becomes another is heeded by nobody.
///
/// # Errors
///
/// Where the kernel does not list its chains.
pub fn translates(address: IpAddr) -> io::Result<bool> {
    let family = Family::of(address);
    Ok(operators::translate(family)? || has_table(family, "nat", false))
}

/// Tells whether a rule of this host's, of nft or iptables-nft, puts packets into a zone of connection tracking:
/// [`Translations`] knows the default one alone.
///
/// # Errors
///
/// Where the kernel does not list its rules.
pub fn has_zones() -> io::Result<bool> {
    operators::make_zones()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_connection_is_told_by_its_answers() {
        let flow = |client: &str, server: &str| FourTuple {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        };
        let asked = flow("10.1.0.2:40000", "10.2.0.2:80");
        let of = |client, server| translation(&asked, flow(client, server));
        assert_eq!(of("10.2.0.2:80", "10.1.0.2:40000"), Translation::None);
        let source = "192.0.2.1:1024";
        assert_eq!(
            of("10.2.0.2:80", source),
            Translation::Source(source.parse().unwrap())
        );
        assert_eq!(of("10.2.0.3:80", source), Translation::Destination);
    }
}
