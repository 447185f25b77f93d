//! The initramfs: busybox, the modules it takes to see the host's files, and the scripts.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use super::error::{Error, Result};
use super::programs::{command, find, name, output};

const INIT: &str = include_str!("init.sh");
const GUEST: &str = include_str!("guest.sh");

/// The bus, the channels to the host, the host's files, memory on top of them.
const MODULES: [&str; 5] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// Builds the initramfs for the kernel in `root`, or finds the one built before from the same
/// parts. The caller holds the cache's lock.
pub(super) fn build(root: &Path, release: &str) -> Result<PathBuf> {
    let busybox = find("busybox".as_ref()).unwrap_or_else(|| PathBuf::from("busybox"));
    let initramfs = root.join(format!("initramfs-{:016x}", recipe(&busybox)?));
    if initramfs.exists() {
        return Ok(initramfs);
    }
    let staging = root.join("staging");
    if staging.exists() {
        fs::remove_dir_all(&staging).map_err(Error::file("remove", &staging))?;
    }
    fill(&staging, &busybox, root, release)?;
    let archive = pack(&staging)?;
    let partial = root.join("initramfs-partial");
    fs::write(&partial, archive).map_err(Error::file("write", &partial))?;
    fs::rename(&partial, &initramfs).map_err(Error::file("create", &initramfs))?;
    fs::remove_dir_all(&staging).map_err(Error::file("remove", &staging))?;
    Ok(initramfs)
}

/// Differs whenever one of the parts does.
fn recipe(busybox: &Path) -> Result<u64> {
    let file = fs::metadata(busybox).map_err(Error::file("read", busybox))?;
    let mut hasher = DefaultHasher::new();
    (INIT, GUEST, MODULES, busybox, file.len()).hash(&mut hasher);
    file.modified()
        .unwrap_or(SystemTime::UNIX_EPOCH)
        .hash(&mut hasher);
    Ok(hasher.finish())
}

fn fill(staging: &Path, busybox: &Path, root: &Path, release: &str) -> Result<()> {
    for directory in ["bin", "modules"] {
        let directory = staging.join(directory);
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
    }
    let target = staging.join("bin/busybox");
    fs::copy(busybox, &target).map_err(Error::file("write", &target))?;
    let shell = staging.join("bin/sh");
    symlink("busybox", &shell).map_err(Error::file("create", &shell))?;
    for (name, script) in [("init", INIT), ("guest.sh", GUEST)] {
        let path = staging.join(name);
        fs::write(&path, script).map_err(Error::file("write", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .map_err(Error::file("write", &path))?;
    }
    for (index, module) in modules(root, release)?.iter().enumerate() {
        let stem = module.file_name().unwrap_or_default().to_string_lossy();
        let stem = stem.split('.').next().unwrap_or_default();
        // In the order of loading, which the shell's `*` keeps.
        let path = staging.join(format!("modules/{index:02}-{stem}.ko"));
        fs::write(&path, unpacked(module)?).map_err(Error::file("write", &path))?;
    }
    Ok(())
}

/// Returns the files of [`MODULES`] and of what they need, each after what it needs.
fn modules(root: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::new();
    let mut ordered = Vec::new();
    for module in MODULES {
        let shown = output(command("modprobe").arg("--dirname").arg(root).args([
            "--set-version",
            release,
            "--show-depends",
            module,
        ]))?;
        // `insmod PATH ` or `builtin NAME`.
        for line in String::from_utf8_lossy(&shown).lines() {
            let Some(path) = line
                .strip_prefix("insmod ")
                .map(|path| PathBuf::from(path.trim()))
            else {
                continue;
            };
            if seen.insert(path.clone()) {
                ordered.push(path);
            }
        }
    }
    Ok(ordered)
}

/// Returns the module itself: newer packages compress it.
fn unpacked(module: &Path) -> Result<Vec<u8>> {
    if module
        .extension()
        .is_some_and(|extension| extension == "xz")
    {
        output(command("xz").args(["--decompress", "--stdout"]).arg(module))
    } else {
        fs::read(module).map_err(Error::file("read", module))
    }
}

/// Returns the directory as an archive that the kernel unpacks
/// (Documentation/driver-api/early-userspace/ buffer-format.rst), owned by root whoever builds it.
fn pack(staging: &Path) -> Result<Vec<u8>> {
    let mut cpio = command("cpio");
    cpio.args([
        "--create",
        "--format=newc",
        "--owner=0:0",
        "--null",
        "--quiet",
    ])
    .current_dir(staging)
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .stderr(Stdio::piped());
    let program = name(&cpio);
    let spawn = |source| Error::Spawn {
        program: program.clone(),
        source,
    };
    let mut child = cpio.spawn().map_err(spawn)?;
    let names = relative_paths(staging)?.join(&0);
    // The names fit in the pipe's buffer, so that the child need not be read meanwhile.
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(&names)
            .map_err(Error::system("write to cpio"))?;
    }
    let done = child
        .wait_with_output()
        .map_err(Error::system("wait for cpio"))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let message = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Error::Failed {
        program,
        status: done.status,
        message,
    })
}

/// Returns all paths below `staging`, directories before what is in them.
fn relative_paths(staging: &Path) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let full = staging.join(&directory);
        for entry in fs::read_dir(&full).map_err(Error::file("read", &full))? {
            let entry = entry.map_err(Error::file("read", &full))?;
            let path = directory.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(path.clone());
            }
            names.push(path.into_os_string().into_encoded_bytes());
        }
    }
    Ok(names)
}
