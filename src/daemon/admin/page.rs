//! The listener of the dashboard and the metrics.

use std::net::{SocketAddr, TcpListener};

use nix::errno::Errno;
use nix::unistd::gethostname;
use pepd_admin::page::Names;
use pepd_config::Config;

use crate::exit::{Failure, Result};

/// A listening TCP socket, and the names under which it is asked.
#[derive(Debug)]
pub struct Page {
    /// The socket, which does not block.
    pub(super) listener: TcpListener,
    pub(super) names: Names,
}

impl Page {
    /// Listens where `[admin] metrics` says; to be called while ports below 1024 are still allowed.
    pub fn bind(config: &Config) -> Result<Option<Self>> {
        let Some(address) = config.admin.metrics else {
            return Ok(None);
        };
        let listener = TcpListener::bind(address)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| unavailable(address, &error))?;
        let host = gethostname().ok().and_then(|name| name.into_string().ok());
        let names = host
            .into_iter()
            .chain([config.node.name.clone()])
            .chain(config.admin.names.iter().cloned());
        Ok(Some(Self {
            listener,
            names: Names::new(names),
        }))
    }
}

fn unavailable(address: SocketAddr, error: &std::io::Error) -> Failure {
    let cure = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE) => "give `[admin] metrics` another port, or end who has this one",
        Some(Errno::EADDRNOTAVAIL) => "give `[admin] metrics` an address that this host has",
        _ => "give `[admin] metrics` another address, or leave it out",
    };
    Failure::unavailable(format!("listen on {address}: {error}; {cure}"))
}
