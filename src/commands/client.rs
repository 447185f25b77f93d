//! Asking a running daemon, over its admin socket.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::Pid;
use pepd_admin::wire::{Done, ErrorBody, Problem};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::cli::Target;
use crate::config_file;
use crate::daemon::admin::{socket_path, usual_socket};
use crate::exit::{Failure, Result};
use crate::runtime;

/// The time that the answer to a question may take. The daemon gives a client less.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that the answer to a control request may take: a reload installs kernel state, maybe on
/// a busy machine.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that the answer may take to an order to move connections: another box that is gone is asked for a minute
/// what has become of those that it was told to serve, and one order may wait for another.
const MOVE_TIMEOUT: Duration = Duration::from_secs(200);

/// The time that the answer may take to a question that is asked each second by who cannot wait. A daemon
/// that hangs gives none.
const SOON: Duration = Duration::from_secs(2);

/// The time for which it is asked again where nobody listens: the daemon's process may have died, and
/// another one be about to go on.
const TAKE_OVER_TIME: Duration = Duration::from_millis(1500);

/// The time between two such attempts.
const TAKE_OVER_STEP: Duration = Duration::from_millis(20);

/// The longest answer taken, in bytes: more than ten thousand flows need.
const LARGEST_ANSWER: usize = 64 << 20;

/// A client of a running daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    runtime: Runtime,
}

/// The reasons why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens at the socket.
    #[error(
        "no daemon answers at {}: {error}; start one (pepd run), or say with -c FILE or \
         --socket PATH which one is meant",
        path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// This user may not open the socket.
    #[error(
        "{} is closed to you; ask as root, or as a member of the group that `[admin] group` \
         names", path.display()
    )]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon went away while it was asked.
    #[error(
        "the daemon at {} gave no answer: {error}; if its process has ended just now, what was asked of it may not \
         have been done: ask again", path.display()
    )]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer took too long.
    #[error(
        "the daemon at {} has not answered within {} s: it is just starting, and what it needs fails (nft), its \
         host is busy, or it hangs; one that does is replaced after some ten seconds. Its log says which",
        path.display(), time.as_secs()
    )]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// The time that was waited.
        time: Duration,
    },
    /// The daemon refuses.
    #[error("{problem}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The daemon's own words.
        problem: Problem,
    },
    /// Something else listens there, or another version of pepd.
    #[error(
        "what answers at {} is not this version of pepd: {error}", path.display()
    )]
    Incompatible {
        /// The socket.
        path: PathBuf,
        /// The reason why it cannot be parsed.
        error: serde_json::Error,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Forbidden { .. } => Self::not_permitted(error),
            // The daemon has said what is wrong with its file.
            Error::Refused {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                problem,
            } => Self::configuration(format!("{}\n{}", problem.what, problem.cure)),
            _ => Self::unavailable(error),
        }
    }
}

impl Client {
    /// Makes a client of the daemon that the command line means.
    pub fn new(target: &Target) -> Result<Self> {
        let path = match (&target.socket, &target.config) {
            (Some(socket), _) => socket.clone(),
            (None, Some(path)) => {
                let config = config_file::read(&target.file(path)).map_err(|failure| {
                    failure.and(format_args!(
                        "the daemon can be asked without its file: `--socket {}` instead of `-c`, or what \
                         `[admin] socket` was when it read it",
                        usual_socket().display()
                    ))
                })?;
                socket_path(&config.admin).ok_or_else(|| {
                    Failure::unavailable(format!(
                        "{} has `[admin] socket = \"off\"`, so its daemon cannot be asked; leave that \
                         out, and restart it",
                        path.display()
                    ))
                })?
            }
            (None, None) => usual_socket(),
        };
        let runtime = runtime::one_thread()?;
        Ok(Self { path, runtime })
    }

    /// Returns which process listens at the socket, as the kernel has it.
    ///
    /// # Errors
    /// Where nobody answers, or ESRCH for a process of another pid namespace.
    pub fn listener(&self) -> io::Result<Pid> {
        let stream = std::os::unix::net::UnixStream::connect(&self.path)?;
        let listener = getsockopt(&stream, PeerCredentials)?.pid();
        // Its number is 0 where this process does not see it (pid_namespaces(7)).
        match listener {
            1.. => Ok(Pid::from_raw(listener)),
            _ => Err(Errno::ESRCH.into()),
        }
    }

    /// Asks a question, and gives the answer as it came.
    pub fn get_text(&self, address: &str) -> std::result::Result<Vec<u8>, Error> {
        self.ask(&Method::GET, address, QUESTION_TIMEOUT)
    }

    /// Asks a question to which the answer is given at once or does not matter any more, and gives it as it
    /// came.
    pub fn get_soon(&self, address: &str) -> std::result::Result<Vec<u8>, Error> {
        self.ask(&Method::GET, address, SOON)
    }

    /// Asks a question, and gives the answer parsed.
    pub fn get<T: DeserializeOwned>(&self, address: &str) -> std::result::Result<T, Error> {
        self.parse(&self.get_text(address)?)
    }

    /// Makes a control request.
    pub fn post(&self, address: &str) -> std::result::Result<Done, Error> {
        self.parse(&self.ask(&Method::POST, address, CONTROL_TIMEOUT)?)
    }

    /// Has connections moved; gives the answer as it is.
    pub fn move_away(&self, address: &str) -> std::result::Result<Vec<u8>, Error> {
        self.ask(&Method::POST, address, MOVE_TIMEOUT)
    }

    /// Parses an answer; without what a terminal would take for more than text, since who answers may have
    /// less rights than who asks.
    pub fn parse<T: DeserializeOwned>(&self, text: &[u8]) -> std::result::Result<T, Error> {
        let parsed = serde_json::from_slice(text).and_then(|mut answer| {
            strip_controls(&mut answer);
            T::deserialize(answer)
        });
        parsed.map_err(|error| Error::Incompatible {
            path: self.path.clone(),
            error,
        })
    }

    /// Asks until there is an answer, for `time` at most. Where one process of the daemon goes on for
    /// another, it is the next one's.
    fn ask(
        &self,
        method: &Method,
        address: &str,
        time: Duration,
    ) -> std::result::Result<Vec<u8>, Error> {
        let begun = Instant::now();
        // Its file is away for a moment where a daemon makes it anew, and for good where one has ended.
        let first = if self.path.exists() {
            TAKE_OVER_TIME
        } else {
            TAKE_OVER_STEP * 2
        };
        let mut patient_until = begun + first;
        let mut cut_off = None;
        loop {
            let left = time.saturating_sub(begun.elapsed());
            match self.ask_once(method.clone(), address, left) {
                // What a process that has died was to answer ends when the next one closes what it had
                // open: that may take longer than until that one listens. Whether it has done what it was
                // told is not known, so it is not told again.
                Err(error @ Error::NoAnswer { .. }) if method == Method::GET && !left.is_zero() => {
                    // Who does so for longer is no pepd.
                    if cut_off.get_or_insert_with(Instant::now).elapsed() > SOON {
                        return Err(error);
                    }
                    patient_until = Instant::now() + TAKE_OVER_TIME;
                }
                Err(Error::Unreachable { .. }) if Instant::now() < patient_until => {}
                Err(Error::TimedOut { path, .. }) => return Err(Error::TimedOut { path, time }),
                answer => return answer,
            }
            thread::park_timeout(TAKE_OVER_STEP);
        }
    }

    fn ask_once(
        &self,
        method: Method,
        address: &str,
        time: Duration,
    ) -> std::result::Result<Vec<u8>, Error> {
        let path = || self.path.clone();
        let asked = async { tokio::time::timeout(time, self.exchange(method, address)).await };
        let (status, body) = self
            .runtime
            .block_on(asked)
            .map_err(|_| Error::TimedOut { path: path(), time })??;
        if status.is_success() {
            return Ok(body);
        }
        let ErrorBody { error: problem } = self.parse(&body)?;
        Err(Error::Refused { status, problem })
    }

    async fn exchange(
        &self,
        method: Method,
        address: &str,
    ) -> std::result::Result<(StatusCode, Vec<u8>), Error> {
        let path = || self.path.clone();
        let stream = UnixStream::connect(&self.path)
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => Error::Forbidden { path: path() },
                _ => Error::Unreachable {
                    path: path(),
                    error,
                },
            })?;
        let no_answer = |error: hyper::Error| Error::NoAnswer {
            path: path(),
            error: error.into(),
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(no_answer)?;
        let request = Request::builder()
            .method(method)
            .uri(address)
            .header(header::HOST, "pepd")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::NoAnswer {
                path: path(),
                error: error.into(),
            })?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(no_answer)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST_ANSWER)
                .collect()
                .await;
            let body = body.map_err(|error| Error::NoAnswer {
                path: path(),
                error,
            })?;
            Ok((status, body.to_bytes().to_vec()))
        };
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // Once it has ended, the answer is there or never will be.
            result = connection => match result {
                Ok(()) => answer.await,
                Err(error) => Err(no_answer(error)),
            },
        }
    }
}

/// Takes the control characters out of all texts of an answer, but for ends of lines.
fn strip_controls(value: &mut Value) {
    match value {
        Value::String(text) => text.retain(|c| c == '\n' || !c.is_control()),
        Value::Array(values) => values.iter_mut().for_each(strip_controls),
        Value::Object(fields) => fields.values_mut().for_each(strip_controls),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_spoken_to() {
        let mut answer: Value =
            serde_json::from_str(r#"{"a": ["\u001b]0;evil\u0007", {"b": "two\nlines\u009b1m"}]}"#)
                .unwrap();
        strip_controls(&mut answer);
        let wanted: Value =
            serde_json::from_str(r#"{"a": ["]0;evil", {"b": "two\nlines1m"}]}"#).unwrap();
        assert_eq!(answer, wanted);
    }
}
