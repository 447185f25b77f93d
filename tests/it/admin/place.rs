//! A daemon with an admin socket, and how to ask there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pepd_testbed::{Finished, World, run};
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// A group that no host has by name.
pub const GROUP: u32 = 54_321;

/// The user that the daemon is while it runs: nobody.
const DAEMON: u32 = 65_534;

/// The address at which a daemon listens.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-admin-")?;
        // What keeps others out must be the socket, not the directory. It is the daemon's, as
        // /run/pepd is.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        chown(directory.path(), Some(DAEMON), Some(DAEMON))?;
        Ok(Self { directory })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    pub fn config(&self) -> String {
        let socket = self.socket();
        format!(
            "{}\n[admin]\nsocket = \"{}\"\n",
            World::config(),
            socket.display()
        )
    }

    /// Returns the same for the group as well.
    pub fn config_for_group(&self) -> String {
        format!("{}group = \"{GROUP}\"\n", self.config())
    }

    /// `pepd COMMAND --socket …`
    pub fn ask(&self, words: &[&str]) -> Result<Finished> {
        let mut command = Command::new(PEPD);
        run(
            command.args(words).arg("--socket").arg(self.socket()),
            LIMIT,
        )
    }
}

/// Returns what curl gets from `address`: the status and the body.
pub fn curl(socket: &Path, method: &str, address: &str) -> Result<(String, String)> {
    curl_with(socket, method, address, &[])
}

/// The same, with more arguments of curl's.
pub fn curl_with(
    socket: &Path,
    method: &str,
    address: &str,
    more: &[&str],
) -> Result<(String, String)> {
    let mut command = Command::new("curl");
    command
        .args(more)
        .args(["-sS", "-g", "-X", method, "-w", "\n%{http_code}"])
        .arg("--unix-socket")
        .arg(socket)
        .arg(format!("http://pepd{address}"));
    let said = run(&mut command, LIMIT)?.success()?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    Ok((status.to_owned(), body.to_owned()))
}
