//! The lock against a second pepd in the same network namespace.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;

use crate::exit::{Failure, Result};

/// The lock of this network namespace, held while a pepd runs in it; the kernel releases it when
/// the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; the failure says who has it.
    pub fn acquire() -> Result<Self> {
        let path = lock_path()?;
        let failed = |error| Failure::internal(&format!("open {}", path.display()), error);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Who it is only makes the message better.
                let _ = file.read_to_string(&mut pid);
                return Err(Failure::unavailable(format!(
                    "pepd runs already in this network namespace (process {}); end it first",
                    pid.trim()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write().map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// Gives the path of this network namespace's lock.
fn lock_path() -> Result<PathBuf> {
    let namespace = fs::read_link("/proc/self/ns/net")
        .map_err(|error| Failure::internal("read /proc/self/ns/net", error))?;
    let directory = runtime_directory();
    let number: String = namespace
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    Ok(directory.join(format!("net-{number}.lock")))
}

/// Gives the directory that is pepd's own while it runs (systemd.exec(5), `RuntimeDirectory=`).
pub fn runtime_directory() -> PathBuf {
    std::env::var_os("RUNTIME_DIRECTORY").map_or_else(|| PathBuf::from("/run/pepd"), PathBuf::from)
}

/// Tells whether a pepd runs in this network namespace; changes nothing.
pub fn is_locked() -> bool {
    let file = lock_path().ok().and_then(|path| File::open(path).ok());
    file.is_some_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
