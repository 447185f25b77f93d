//! Asking a running daemon, over its admin socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use pepd_admin::wire::{ErrorBody, Problem};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::cli::Target;
use crate::config_file;
use crate::exit::{Failure, Result};

/// Where the daemon listens if nobody says otherwise.
const USUAL: &str = "/run/pepd/admin.sock";

/// How long an answer may take. The daemon gives a client less.
const PATIENCE: Duration = Duration::from_secs(15);

/// A reload installs kernel state, on a busy machine maybe.
const PATIENCE_WITH_ORDERS: Duration = Duration::from_secs(60);

/// More than ten thousand flows need.
const LARGEST: usize = 64 << 20;

/// Where a daemon can be asked.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    runtime: Runtime,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error(
        "no daemon answers at {}: {error}; start one whose file has `[admin] socket`, or say \
         with -c FILE or --socket PATH which one is meant",
        path.display()
    )]
    Away {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The socket is for others.
    #[error(
        "{} is closed to you; ask as root, or as a member of the group that `[admin] group` \
         names", path.display()
    )]
    Forbidden {
        /// Where.
        path: PathBuf,
    },
    /// The daemon went while it was asked.
    #[error(
        "the daemon at {} gave no answer: {error}; its log may say why", path.display()
    )]
    Broken {
        /// Where.
        path: PathBuf,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It took too long.
    #[error("the daemon at {} has not answered within {} s", path.display(), time.as_secs())]
    Late {
        /// Where.
        path: PathBuf,
        /// How long was waited.
        time: Duration,
    },
    /// It does not do that.
    #[error("{problem}")]
    Refused {
        /// The status of HTTP.
        status: StatusCode,
        /// What it says.
        problem: Problem,
    },
    /// Something else listens there, or another version.
    #[error(
        "what answers at {} is not this version of pepd: {error}", path.display()
    )]
    Foreign {
        /// Where.
        path: PathBuf,
        /// What is not understood.
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
    /// Of the daemon that the command line means.
    pub fn new(target: &Target) -> Result<Self> {
        let path = match (&target.socket, &target.config) {
            (Some(socket), _) => socket.clone(),
            (None, Some(path)) => config_file::read(&target.file(path))?
                .admin
                .socket
                .ok_or_else(|| {
                    Failure::unavailable(format!(
                        "{} has no `[admin] socket`, so its daemon cannot be asked; add one, such \
                     as \"{USUAL}\", and restart it",
                        path.display()
                    ))
                })?,
            (None, None) => PathBuf::from(USUAL),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::internal("start the runtime", error))?;
        Ok(Self { path, runtime })
    }

    /// The answer to a question, as it came.
    pub fn get_text(&self, address: &str) -> std::result::Result<Vec<u8>, Error> {
        self.ask(Method::GET, address, PATIENCE)
    }

    /// The answer to a question.
    pub fn get<T: DeserializeOwned>(&self, address: &str) -> std::result::Result<T, Error> {
        self.understand(&self.get_text(address)?)
    }

    /// Gives an order.
    pub fn post(&self, address: &str) -> std::result::Result<(), Error> {
        self.ask(Method::POST, address, PATIENCE_WITH_ORDERS)
            .map(drop)
    }

    fn understand<T: DeserializeOwned>(&self, text: &[u8]) -> std::result::Result<T, Error> {
        serde_json::from_slice(text).map_err(|error| Error::Foreign {
            path: self.path.clone(),
            error,
        })
    }

    fn ask(
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
            .map_err(|_| Error::Late { path: path(), time })??;
        if status.is_success() {
            return Ok(body);
        }
        let ErrorBody { error: problem } = self.understand(&body)?;
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
                _ => Error::Away {
                    path: path(),
                    error,
                },
            })?;
        let broken = |error: hyper::Error| Error::Broken {
            path: path(),
            error: error.into(),
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let request = Request::builder()
            .method(method)
            .uri(address)
            .header(header::HOST, "pepd")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::Broken {
                path: path(),
                error: error.into(),
            })?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| Error::Broken {
                path: path(),
                error,
            })?;
            Ok((status, body.to_bytes().to_vec()))
        };
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // Once it has ended the answer is there, or never will be.
            result = connection => match result {
                Ok(()) => answer.await,
                Err(error) => Err(broken(error)),
            },
        }
    }
}
