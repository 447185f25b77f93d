use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::say;

/// The folder that a guest writes to. At the end it is named if there is something in it; a
/// folder that was made here and stayed empty is removed.
pub struct Results {
    path: PathBuf,
    ours: bool,
}

impl Results {
    /// Takes `chosen`, or makes a new folder below `target`.
    pub fn new(chosen: Option<&Path>, target: &Path) -> Result<Self> {
        let path = chosen.map_or_else(|| fresh(target), Path::to_owned);
        let ours = !path.exists();
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        // QEMU and messages get a path that does not depend on the directory.
        let path = path
            .canonicalize()
            .with_context(|| format!("cannot open {}", path.display()))?;
        finish_at_signal(path.clone(), ours)?;
        Ok(Self { path, ours })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        finish(&self.path, self.ours);
    }
}

fn finish(path: &Path, ours: bool) {
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if !empty {
        say(format_args!("results are in {}", path.display()));
    } else if ours {
        // Nothing is lost if it stays.
        let _ = fs::remove_dir(path);
    }
}

/// Makes a signal end the process in the same orderly way. QEMU ends with the process.
fn finish_at_signal(path: PathBuf, ours: bool) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            finish(&path, ours);
            process::exit(128 + signal);
        }
    });
    Ok(())
}

fn fresh(target: &Path) -> PathBuf {
    let folders = target.join("vm");
    remove_abandoned(&folders);
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    folders.join(format!("{}-{}", since.as_secs(), process::id()))
}

/// Removes the empty folders of processes that were killed.
fn remove_abandoned(folders: &Path) {
    for entry in fs::read_dir(folders).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.split_once('-')?.1.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            // Fails if there are results in it, which stay.
            let _ = fs::remove_dir(entry.path());
        }
    }
}
