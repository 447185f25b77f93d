//! One side of a session.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use snow::{Builder, HandshakeState, TransportState};

use super::replays::Replays;
use super::{Key, LONGEST_NAME, Name, SessionError, VERSIONS};
use crate::wire::{Frame, LONGEST_FRAME};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// What a session begins with.
const MAGIC: &[u8; 9] = b"pepd-move";

/// Magic, the lowest version, the highest, and the length of the name.
const HELLO_HEAD: usize = MAGIC.len() + 2 + 2 + 1;

/// What a record or a handshake's message needs beyond what is in it.
const TAG: usize = 16;

/// The longest message of the handshake: an ephemeral key and a tag.
const HANDSHAKE_MESSAGE: usize = 32 + TAG;

/// One side of a session: takes the bytes that come, and gives those that go.
pub struct Session {
    stage: Stage,
    /// What has come, and is not understood yet: never more than one record.
    input: Vec<u8>,
    output: Vec<u8>,
    /// What this side has said first.
    own_hello: Vec<u8>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

/// How far a session has come.
enum Stage {
    /// It has begun this session with `peer`, whose hello is to come.
    Greeting {
        peer: Name,
        key: Key,
    },
    /// It waits for anybody's hello.
    Listening {
        keys: Arc<BTreeMap<Name, Key>>,
    },
    /// The other side's message is to come.
    Proving {
        peer: Name,
        noise: Box<HandshakeState>,
    },
    /// Records come and go. `proved`: one has come.
    Open {
        peer: Name,
        noise: Box<TransportState>,
        proved: bool,
    },
    Over,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greeting { .. } => "Greeting",
            Self::Listening { .. } => "Listening",
            Self::Proving { .. } => "Proving",
            Self::Open { .. } => "Open",
            Self::Over => "Over",
        })
    }
}

/// Returns what a side says first.
fn hello(own: &Name) -> Vec<u8> {
    let mut hello = MAGIC.to_vec();
    hello.extend(VERSIONS.start().to_be_bytes());
    hello.extend(VERSIONS.end().to_be_bytes());
    // A name is no longer.
    hello.push(u8::try_from(own.as_str().len()).unwrap_or(u8::MAX));
    hello.extend(own.as_str().bytes());
    hello
}

/// What a side says first.
struct Hello {
    name: Name,
    versions: RangeInclusive<u16>,
    /// How long it was.
    length: usize,
}

impl Hello {
    /// Says whether both sides have a version in common.
    fn fits(&self) -> Result<(), SessionError> {
        let (&lowest, &highest) = (self.versions.start(), self.versions.end());
        match lowest > *VERSIONS.end() || highest < *VERSIONS.start() {
            true => Err(SessionError::Version { lowest, highest }),
            false => Ok(()),
        }
    }
}

/// Reads what the other side says first, if it is there.
fn read_hello(input: &[u8]) -> Result<Option<Hello>, SessionError> {
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        return Err(SessionError::Foreign);
    }
    let Some(head) = input.first_chunk::<HELLO_HEAD>() else {
        return Ok(None);
    };
    let number =
        |at: usize| u16::from_be_bytes([head[MAGIC.len() + at], head[MAGIC.len() + at + 1]]);
    let versions = number(0)..=number(2);
    let length = usize::from(head[HELLO_HEAD - 1]);
    if length > LONGEST_NAME {
        return Err(SessionError::Foreign);
    }
    let Some(name) = input.get(HELLO_HEAD..HELLO_HEAD + length) else {
        return Ok(None);
    };
    let name = std::str::from_utf8(name).ok().and_then(Name::new);
    Ok(Some(Hello {
        name: name.ok_or(SessionError::Foreign)?,
        versions,
        length: HELLO_HEAD + length,
    }))
}

/// Begins the handshake; the hellos are in the order in which they were said.
fn noise<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?)
        .psk(0, key.bytes())?
        .prologue(prologue)
}

impl Session {
    fn new(own: &Name, stage: Stage) -> Self {
        Self {
            stage,
            input: Vec::new(),
            output: Vec::new(),
            own_hello: hello(own),
        }
    }

    /// Begins a session with the box `peer`.
    #[must_use]
    pub fn initiate(own: &Name, peer: Name, key: Key) -> Self {
        let mut session = Self::new(own, Stage::Greeting { peer, key });
        session.output = session.own_hello.clone();
        session
    }

    /// Waits for any box to begin one of those whose keys are known.
    #[must_use]
    pub fn listen(own: &Name, keys: Arc<BTreeMap<Name, Key>>) -> Self {
        Self::new(own, Stage::Listening { keys })
    }

    /// Takes what is to be sent to the other side.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the other box, once it has proved that it is that, here and now.
    #[must_use]
    pub fn peer(&self) -> Option<&Name> {
        match &self.stage {
            Stage::Open {
                peer, proved: true, ..
            } => Some(peer),
            _ => None,
        }
    }

    /// Takes what the other side has sent, and gives the frames that are complete.
    ///
    /// # Errors
    /// Where it is not what it should be: then the session is over, and what there is to be sent says to a box of another
    /// version which ones this side speaks.
    pub fn read(
        &mut self,
        bytes: &[u8],
        replays: &mut Replays,
    ) -> Result<Vec<Frame>, SessionError> {
        let mut frames = Vec::new();
        self.input.extend_from_slice(bytes);
        let read = loop {
            match self.step(replays) {
                Ok(Step::Frame(frame)) => frames.push(frame),
                Ok(Step::On) => {}
                Ok(Step::More) => break Ok(frames),
                Err(error) => break Err(error),
            }
        };
        if read.is_err() {
            self.stage = Stage::Over;
            self.input = Vec::new();
        }
        read
    }

    /// Has a frame sent to the other side.
    ///
    /// # Errors
    /// Where the other side has not proved yet who it is, or the frame is too long.
    pub fn write(&mut self, frame: &Frame) -> Result<(), SessionError> {
        let Stage::Open {
            noise,
            proved: true,
            ..
        } = &mut self.stage
        else {
            return Err(SessionError::NotOpen);
        };
        let bytes = frame.to_bytes();
        if bytes.len() > LONGEST_FRAME {
            return Err(crate::wire::FrameError::Length(bytes.len()).into());
        }
        let mut record = vec![0; bytes.len() + TAG];
        let length = noise
            .write_message(&bytes, &mut record)
            .map_err(|_| SessionError::NotOpen)?;
        push_message(&mut self.output, &record[..length]);
        Ok(())
    }

    fn step(&mut self, replays: &mut Replays) -> Result<Step, SessionError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            stage @ (Stage::Greeting { .. } | Stage::Listening { .. }) => self.greeted(stage),
            Stage::Proving { peer, noise } => self.proved(peer, noise, replays),
            Stage::Open {
                peer,
                noise,
                proved,
            } => self.record(peer, noise, proved),
            Stage::Over => Err(SessionError::NotOpen),
        }
    }

    /// Takes the other side's hello.
    fn greeted(&mut self, stage: Stage) -> Result<Step, SessionError> {
        let Some(hello) = read_hello(&self.input)? else {
            self.stage = stage;
            return Ok(Step::More);
        };
        let theirs: Vec<u8> = self.input.drain(..hello.length).collect();
        let fits = hello.fits();
        let name = hello.name;
        let unfit = |_| SessionError::WrongKey;
        let (own, peer) = (&self.own_hello, name.clone());
        let noise = match stage {
            Stage::Greeting { peer, key } => {
                if peer != name {
                    return Err(SessionError::Another(name));
                }
                fits?;
                let prologue = [&own[..], &theirs].concat();
                let begun = noise(&key, &prologue).and_then(Builder::build_initiator);
                let mut begun = begun.map_err(unfit)?;
                let mut message = [0; HANDSHAKE_MESSAGE];
                let length = begun.write_message(&[], &mut message).map_err(unfit)?;
                push_message(&mut self.output, &message[..length]);
                begun
            }
            Stage::Listening { keys } => {
                let Some(key) = keys.get(&name) else {
                    return Err(SessionError::Unknown(name));
                };
                self.output.extend_from_slice(own);
                // The other box is to know, too.
                fits?;
                let prologue = [&theirs[..], own].concat();
                let begun = noise(key, &prologue).and_then(Builder::build_responder);
                begun.map_err(unfit)?
            }
            _ => return Err(SessionError::NotOpen),
        };
        let noise = Box::new(noise);
        self.stage = Stage::Proving { peer, noise };
        Ok(Step::On)
    }

    /// Takes the other side's message of the handshake.
    fn proved(
        &mut self,
        peer: Name,
        mut noise: Box<HandshakeState>,
        replays: &mut Replays,
    ) -> Result<Step, SessionError> {
        let begins = noise.is_initiator();
        let Some(message) = take_message(&mut self.input, HANDSHAKE_MESSAGE) else {
            self.stage = Stage::Proving { peer, noise };
            return Ok(Step::More);
        };
        let message = message.map_err(|_| SessionError::WrongKey)?;
        let read = noise.read_message(&message, &mut [0; HANDSHAKE_MESSAGE]);
        read.map_err(|_| SessionError::WrongKey)?;
        if !begins {
            // A message that was read begins with the ephemeral key.
            let beginning = message.first_chunk().ok_or(SessionError::WrongKey)?;
            if !replays.admit(*beginning) {
                return Err(SessionError::Replay);
            }
            let mut answer = [0; HANDSHAKE_MESSAGE];
            let length = noise.write_message(&[], &mut answer);
            let length = length.map_err(|_| SessionError::WrongKey)?;
            push_message(&mut self.output, &answer[..length]);
        }
        let open = noise.into_transport_mode();
        let noise = Box::new(open.map_err(|_| SessionError::WrongKey)?);
        self.stage = Stage::Open {
            peer,
            noise,
            // The answer to what this side has just drawn is no replay.
            proved: begins,
        };
        Ok(Step::On)
    }

    /// Takes a record.
    fn record(
        &mut self,
        peer: Name,
        mut noise: Box<TransportState>,
        proved: bool,
    ) -> Result<Step, SessionError> {
        let Some(message) = take_message(&mut self.input, usize::from(u16::MAX)) else {
            self.stage = Stage::Open {
                peer,
                noise,
                proved,
            };
            return Ok(Step::More);
        };
        let wrong = match proved {
            true => SessionError::Changed,
            false => SessionError::Replay,
        };
        let message = message.map_err(|_| wrong.clone())?;
        let mut bytes = vec![0; message.len()];
        let length = noise
            .read_message(&message, &mut bytes)
            .map_err(|_| wrong)?;
        self.stage = Stage::Open {
            peer,
            noise,
            proved: true,
        };
        Ok(Step::Frame(Frame::read(&bytes[..length])?))
    }
}

/// The outcome of looking at what has come.
enum Step {
    /// There may be something else to look at.
    On,
    /// The rest of it is to come.
    More,
    Frame(Frame),
}

/// A message that is longer than it may be.
struct TooLong;

/// Appends a message with its length before it.
fn push_message(output: &mut Vec<u8>, message: &[u8]) {
    // No message is longer.
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    output.extend(length.to_be_bytes());
    output.extend_from_slice(message);
}

/// Takes the first message off what has come; none as long as it is not all there.
fn take_message(input: &mut Vec<u8>, longest: usize) -> Option<Result<Vec<u8>, TooLong>> {
    let length = usize::from(u16::from_be_bytes(*input.first_chunk()?));
    if length > longest {
        return Some(Err(TooLong));
    }
    let message = input.get(2..2 + length)?.to_vec();
    input.drain(..2 + length);
    Some(Ok(message))
}
