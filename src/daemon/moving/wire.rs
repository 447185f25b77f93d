//! A session over a connection of the daemon's own.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pepd_move::session::{Key, Name, Replays, Session, SessionError};
use pepd_move::wire::{Frame, MoveId};
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

impl Ended {
    /// Says why a session did not open, and what may be behind it.
    pub(super) fn with_hint(&self) -> String {
        let perhaps = match self {
            Self::Closed | Self::Unheard => {
                ": has it another key, or no [[neighbor]] with this box's name? Its log says why"
            }
            _ => "",
        };
        format!("{self}{perhaps}")
    }
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
    replays: Rc<RefCell<Replays>>,
}

impl Wire {
    fn new(stream: TcpStream, session: Session, replays: Rc<RefCell<Replays>>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            session,
            waiting: Vec::new(),
            buffer: vec![0; 64 << 10].into_boxed_slice(),
            is_heard: false,
            replays,
        })
    }

    /// Opens a session with a neighbor.
    pub(super) async fn open(ground: &Ground, to: &Name, at: SocketAddr) -> Result<Self, Ended> {
        let key = ground
            .keys
            .0
            .get(to)
            .ok_or(SessionError::Unknown(to.clone()))?;
        Self::greet(&ground.own, to.clone(), key.clone(), at).await
    }

    /// Opens a session with any box whose key is known.
    async fn greet(own: &Name, to: Name, key: Key, at: SocketAddr) -> Result<Self, Ended> {
        let session = Session::initiate(own, to, key);
        let opening = async {
            // What it begins itself is nobody's replay.
            let mut wire = Self::new(TcpStream::connect(at).await?, session, Rc::default())?;
            wire.flush().await?;
            while wire.session.peer().is_none() {
                wire.read().await?;
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
            let mut wire = Self::new(stream, session, Rc::clone(&ground.replays))?;
            while wire.waiting.is_empty() {
                wire.read().await?;
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
    pub(super) async fn next(&mut self) -> Result<Frame, Ended> {
        loop {
            if let Some(frame) = self.waiting.pop() {
                return Ok(frame);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Ended> {
        let length = self.stream.read(&mut self.buffer).await?;
        if length == 0 {
            return Err(if self.is_heard {
                Ended::Closed
            } else {
                Ended::Unheard
            });
        }
        self.is_heard = true;
        let read = self
            .session
            .read(&self.buffer[..length], &mut self.replays.borrow_mut());
        match read {
            Ok(frames) => {
                self.waiting.splice(..0, frames.into_iter().rev());
                Ok(())
            }
            Err(error) => {
                // Which versions this side speaks. Whoever has gone meanwhile need not know.
                let _ = self.flush().await;
                Err(error.into())
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let output = self.session.take_output();
        let sent = timeout(SEND_TIME, self.stream.write_all(&output)).await;
        Ok(sent.map_err(|_| Ended::Late)??)
    }
}

/// Finds out whether a box is the one that was meant, and has the key: for whoever looks before anything moves.
///
/// # Errors
/// Why it is not, for people.
pub async fn prove(own: &Name, to: Name, key: Key, at: SocketAddr) -> Result<(), String> {
    let proved = async {
        let mut wire = Wire::greet(own, to, key, at).await?;
        // Of no move: whoever proves who it is, and says nothing, is counted there.
        wire.send(&Frame::Ask(MoveId([0; 16]))).await?;
        timeout(HANDSHAKE_TIME, wire.next())
            .await
            .unwrap_or(Err(Ended::Late))
    };
    proved.await.map(drop).map_err(|why: Ended| why.with_hint())
}

/// Hears what is said next over a session, where there is one; none where the deadline comes before, where there is
/// one.
pub(super) async fn heard(
    wire: &mut Option<Wire>,
    deadline: Option<Instant>,
) -> Option<Result<Frame, Ended>> {
    let next = async {
        match wire {
            Some(wire) => wire.next().await,
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
