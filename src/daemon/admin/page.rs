//! The listener of the dashboard and the metrics.

use std::io;
use std::net::{SocketAddr, TcpListener};

use nix::errno::Errno;
use nix::unistd::gethostname;
use pepd_admin::page::Names;
use pepd_config::Config;
use socket2::{Domain, Socket, Type};

use crate::exit::{Failure, Result};

/// Connections that may wait to be accepted, as std has it.
const BACKLOG: i32 = 128;

/// A listening TCP socket, and the names under which it is asked.
#[derive(Debug)]
pub struct Page {
    /// The socket, which does not block.
    pub(super) listener: TcpListener,
    pub(super) names: Names,
}

impl Page {
    /// Listens where `[admin] metrics` says; to be called while ports below 1024 are still allowed.
    ///
    /// An address that this host does not have yet is waited for by the kernel, and a port that
    /// another program has is no reason not to relay: `lacks` is given a line about either.
    ///
    /// # Errors
    ///
    /// If the address can never be listened at.
    pub fn bind(config: &Config, lacks: &mut Vec<String>) -> Result<Option<Self>> {
        let Some(address) = config.admin.metrics else {
            return Ok(None);
        };
        let listener = match listen(address, false) {
            Err(error) if errno(&error) == Some(Errno::EADDRNOTAVAIL) => {
                lacks.push(format!(
                    "this host does not have {}: metrics and dashboard are there once it does",
                    address.ip()
                ));
                listen(address, true)
            }
            listened => listened,
        };
        let listener = match listener {
            Err(error) if errno(&error) == Some(Errno::EADDRINUSE) => {
                lacks.push(format!(
                    "no metrics and no dashboard until a restart: listen on {address}: {error}; end \
                     who has this port, or give `[admin] metrics` another one"
                ));
                return Ok(None);
            }
            listened => listened.map_err(|error| unavailable(address, &error))?,
        };
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

/// Listens; with `anywhere` also at an address that this host does not have yet (ip(7), IP_FREEBIND).
fn listen(address: SocketAddr, anywhere: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // As std does it: what connections of the daemon before have left does not stand in the way.
    socket.set_reuse_address(true)?;
    if anywhere && address.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else if anywhere {
        socket.set_freebind_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

fn unavailable(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::unavailable(format!(
        "listen on {address}: {error}; give `[admin] metrics` another address, or leave it out"
    ))
}
