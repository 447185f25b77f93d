//! Where the daemon can be asked about itself.

use std::net::SocketAddr;
use std::path::PathBuf;

/// `[admin]`: where the daemon can be asked about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admin {
    /// The Unix socket of the admin API.
    pub socket: AdminSocket,
    /// The group whose members may open it besides root; a name, or a number. `None` is nobody.
    pub group: Option<String>,
    /// The address at which Prometheus metrics are served. `None` is off.
    pub metrics: Option<SocketAddr>,
    /// Names, in lower case, under which browsers and Prometheus may ask for it, beside
    /// addresses, `localhost`, the host's own name and `[node] name`.
    pub names: Vec<String>,
}

/// Where the Unix socket of the admin API is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdminSocket {
    /// `admin.sock` in the daemon's own directory, `/run/pepd`; the file names none. A daemon that
    /// cannot have it there does without.
    #[default]
    Usual,
    /// At this absolute path.
    At(PathBuf),
    /// Nowhere.
    Off,
}
