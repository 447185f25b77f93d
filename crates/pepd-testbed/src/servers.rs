//! Real servers: nginx, sshd, iperf3.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::netns::Netns;
use crate::process::{Process, run};
use crate::sockets::listens;
use crate::wait::wait_until;

/// The time that a server may take to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// nginx on port 80 of both families, with files of its own: it serves them, takes new ones
/// by PUT, and logs who asked.
#[derive(Debug)]
pub struct Nginx {
    directory: TempDir,
    process: Process,
}

impl Nginx {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When nginx is not installed or ends; the message has its log.
    pub fn start(netns: &Netns) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-nginx-")?;
        let root = directory.path();
        for name in ["files", "temporary"] {
            fs::create_dir(root.join(name))?;
        }
        let config = NGINX.replace("DIRECTORY", &root.display().to_string());
        fs::write(root.join("nginx.conf"), config)?;
        let mut command = netns.command("nginx");
        command
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"));
        // Without it nginx opens the distribution's log file before it has read ours.
        command.arg("-e").arg(root.join("error.log"));
        let process = Process::spawn(&mut command)?;
        await_listener(netns, 80).with_context(|| process.log())?;
        Ok(Self { directory, process })
    }

    /// Returns the folder it serves, and where what was PUT arrives.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    /// Puts a file into the folder it serves.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_file(&self, name: &str, content: &[u8]) -> Result<()> {
        Ok(fs::write(self.files().join(name), content)?)
    }

    /// Returns the address of a file on it.
    #[must_use]
    pub fn url(&self, address: IpAddr, name: &str) -> String {
        format!("http://{}/{name}", SocketAddr::new(address, 80))
    }

    /// Returns its access log: `client server request status bytes` per line, the addresses with
    /// their ports. A line is written when the response has been.
    #[must_use]
    pub fn access_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("access.log"));
        text.unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Waits for the access log's line about `name` and returns it.
    ///
    /// # Errors
    /// When none comes.
    pub fn logged(&self, name: &str) -> Result<String> {
        let mut found = None;
        wait_until(LIMIT, &format!("nginx logs a request for {name}"), || {
            found = self
                .access_log()
                .into_iter()
                .find(|line| line.contains(name));
            found.is_some()
        })?;
        found.context("no line")
    }

    /// Returns the master process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }
}

const NGINX: &str = r#"
daemon off;
user root;
worker_processes 2;
pid DIRECTORY/pid;
error_log DIRECTORY/error.log;
events { worker_connections 8192; }
http {
    log_format who '$remote_addr $remote_port $server_addr $server_port "$request" $status $body_bytes_sent';
    access_log DIRECTORY/access.log who;
    client_max_body_size 0;
    client_body_temp_path DIRECTORY/temporary;
    proxy_temp_path DIRECTORY/temporary;
    fastcgi_temp_path DIRECTORY/temporary;
    uwsgi_temp_path DIRECTORY/temporary;
    scgi_temp_path DIRECTORY/temporary;
    sendfile on;
    server {
        listen 80 backlog=4096;
        listen [::]:80 backlog=4096;
        root DIRECTORY/files;
        location / { dav_methods PUT; }
    }
}
"#;

/// sshd on port 22 with throw-away keys, and a client configuration that knows them.
#[derive(Debug)]
pub struct Sshd {
    directory: TempDir,
    process: Process,
}

impl Sshd {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When sshd or ssh-keygen is not installed, or ends; the message has its log.
    pub fn start(netns: &Netns) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-sshd-")?;
        let root = directory.path();
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(root.join(key));
            run(&mut keygen, LIMIT)?.success()?;
        }
        fs::copy(root.join("user.pub"), root.join("authorized_keys"))?;
        // sshd wants its privilege separation folder; Debian's service unit makes it elsewhere.
        fs::create_dir_all("/run/sshd")?;
        let config = SSHD.replace("DIRECTORY", &root.display().to_string());
        fs::write(root.join("sshd_config"), config)?;
        // sshd starts itself again for each connection, so it wants to be called by its path.
        let mut command = netns.command("/usr/sbin/sshd");
        command
            .args(["-D", "-e", "-f"])
            .arg(root.join("sshd_config"));
        let process = Process::spawn(&mut command)?;
        await_listener(netns, 22).with_context(|| process.log())?;
        Ok(Self { directory, process })
    }

    /// Returns the options by which `ssh` and `scp` reach it without a question.
    #[must_use]
    pub fn client_options(&self) -> Vec<String> {
        let key = self.directory.path().join("user");
        vec![
            "-F/dev/null".to_owned(),
            format!("-i{}", key.display()),
            "-oBatchMode=yes".to_owned(),
            "-oStrictHostKeyChecking=no".to_owned(),
            "-oUserKnownHostsFile=/dev/null".to_owned(),
            "-oLogLevel=ERROR".to_owned(),
        ]
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

const SSHD: &str = "
Port 22
AddressFamily any
HostKey DIRECTORY/host
AuthorizedKeysFile DIRECTORY/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
";

/// `iperf3 -s` on port 5201, for one test: after one it refuses the next for as long as it takes
/// to put the last away.
#[derive(Debug)]
pub struct Iperf3 {
    process: Process,
}

impl Iperf3 {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When iperf3 is not installed, or ends.
    pub fn start(netns: &Netns) -> Result<Self> {
        let process = Process::spawn(netns.command("iperf3").args(["-s", "-1"]))?;
        await_listener(netns, 5201).with_context(|| process.log())?;
        Ok(Self { process })
    }

    /// Returns its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Waits until something in `netns` listens on `port`.
fn await_listener(netns: &Netns, port: u16) -> Result<()> {
    wait_until(LIMIT, &format!("a listener on port {port}"), || {
        listens(netns, port).unwrap_or(false)
    })
}
