//! A session over a connection of the daemon's own.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pepd_move::session::{Name, Session, SessionError};
use pepd_move::wire::Frame;
use pepd_packet::FourTuple;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use super::Ground;

/// The time in which the other box is to answer, and to prove who it is.
const HANDSHAKE_TIME: Duration = Duration::from_secs(3);

/// The time that the other box may take for what it is sent.
const SEND_TIME: Duration = Duration::from_secs(10);

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// Its connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side says what it should not.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The other side says nothing.
    #[error("it does not answer")]
    Late,
    /// The other side has closed it.
    #[error("it has ended the session")]
    Closed,
    /// This side ends.
    #[error("the daemon here ends")]
    Ending,
    /// The other side has begun another move of the same connections.
    #[error("the other box offers them again")]
    Superseded,
    /// The other side has closed it, and never said anything.
    #[error("it has ended the session without a word")]
    Unheard,
}

/// A session that is open, or about to be.
pub(super) struct Wire {
    stream: TcpStream,
    session: Session,
    /// What has come, and was not asked for yet, the last first.
    waiting: Vec<Frame>,
    buffer: Box<[u8]>,
    /// Whether anything has been heard.
    is_heard: bool,
}

impl Wire {
    fn new(stream: TcpStream, session: Session) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            session,
            waiting: Vec::new(),
            buffer: vec![0; 64 << 10].into_boxed_slice(),
            is_heard: false,
        })
    }

    /// Opens a session with a neighbor.
    pub(super) async fn open(ground: &Ground, to: &Name, at: SocketAddr) -> Result<Self, Ended> {
        let key = ground
            .keys
            .0
            .get(to)
            .ok_or(SessionError::Unknown(to.clone()))?;
        let session = Session::initiate(&ground.own, to.clone(), key.clone());
        let opening = async {
            let mut wire = Self::new(TcpStream::connect(at).await?, session)?;
            wire.flush().await?;
            while wire.session.peer().is_none() {
                wire.read(ground).await?;
                wire.flush().await?;
            }
            Ok(wire)
        };
        timeout(HANDSHAKE_TIME, opening)
            .await
            .unwrap_or(Err(Ended::Late))
    }

    /// Answers whoever has connected; gives who it is, and what it has said first: that proves that it is.
    pub(super) async fn answer(
        ground: &Ground,
        stream: TcpStream,
    ) -> Result<(Self, Name, Frame), Ended> {
        let session = Session::listen(&ground.own, std::sync::Arc::clone(&ground.keys.0));
        let opening = async {
            let mut wire = Self::new(stream, session)?;
            while wire.waiting.is_empty() {
                wire.read(ground).await?;
                wire.flush().await?;
            }
            let first = wire.waiting.pop().ok_or(Ended::Closed)?;
            let peer = wire.session.peer().cloned().ok_or(SessionError::NotOpen)?;
            Ok((wire, peer, first))
        };
        timeout(HANDSHAKE_TIME, opening)
            .await
            .unwrap_or(Err(Ended::Late))
    }

    /// Returns the addresses and ports of its connection, as the other side has opened it.
    pub(super) fn flow(&self) -> io::Result<FourTuple> {
        Ok(FourTuple {
            client: self.stream.peer_addr()?,
            server: self.stream.local_addr()?,
        })
    }

    /// Says something.
    pub(super) async fn send(&mut self, frame: &Frame) -> Result<(), Ended> {
        self.session.write(frame)?;
        self.flush().await
    }

    /// Hears what is said next. Nothing is lost where nobody waits for it to the end.
    pub(super) async fn next(&mut self, ground: &Ground) -> Result<Frame, Ended> {
        loop {
            if let Some(frame) = self.waiting.pop() {
                return Ok(frame);
            }
            self.read(ground).await?;
        }
    }

    async fn read(&mut self, ground: &Ground) -> Result<(), Ended> {
        let length = self.stream.read(&mut self.buffer).await?;
        if length == 0 {
            return Err(if self.is_heard {
                Ended::Closed
            } else {
                Ended::Unheard
            });
        }
        self.is_heard = true;
        let mut replays = ground.replays.borrow_mut();
        let frames = self.session.read(&self.buffer[..length], &mut replays)?;
        self.waiting.splice(..0, frames.into_iter().rev());
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let output = self.session.take_output();
        let sent = timeout(SEND_TIME, self.stream.write_all(&output)).await;
        Ok(sent.map_err(|_| Ended::Late)??)
    }
}

/// Hears what is said next over a session, where there is one; none where the deadline comes before, where there is
/// one.
pub(super) async fn heard(
    wire: &mut Option<Wire>,
    ground: &Ground,
    deadline: Option<Instant>,
) -> Option<Result<Frame, Ended>> {
    let next = async {
        match wire {
            Some(wire) => wire.next(ground).await,
            None => std::future::pending().await,
        }
    };
    match deadline {
        Some(deadline) => tokio::select! {
            heard = next => Some(heard),
            () = sleep_until(deadline.into()) => None,
        },
        None => Some(next.await),
    }
}
