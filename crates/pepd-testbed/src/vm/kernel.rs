//! Debian's kernels: found by apt, kept in the user's cache.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::initramfs;
use super::programs::{command, output, require_programs};

/// The name of a Debian kernel package, or of one that depends on the newest of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPackage(String);

impl KernelPackage {
    /// Checks the name; `None` if `name` cannot be a package's name (Debian policy, section 5.6.1).
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.');
        let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        (starts && name.len() > 1 && name.bytes().all(valid)).then(|| Self(name.to_owned()))
    }
}

impl Default for KernelPackage {
    /// Returns the release's own kernel.
    fn default() -> Self {
        Self("linux-image-amd64".to_owned())
    }
}

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub(super) image: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// Takes `package` from the cache, or downloads and unpacks it there; `say` is told what
    /// takes long.
    ///
    /// # Errors
    /// Missing programs, a package that apt does not know or cannot fetch, no room.
    pub fn prepare(package: &KernelPackage, say: &mut dyn FnMut(&str)) -> Result<Self> {
        require_programs()?;
        let package = resolve(package)?;
        let cache = cache_directory()?;
        fs::create_dir_all(&cache).map_err(Error::file("create", &cache))?;
        let _lock = lock(&cache)?;

        let root = cache.join(format!("{}_{}", package.name, package.version));
        if !root.exists() {
            say(&format!("fetching {} {}", package.name, package.version));
            fetch(&package, &cache, &root)?;
        }
        let release = release(&package, &root)?;
        let image = root.join("boot").join(format!("vmlinuz-{release}"));
        if !image.exists() {
            return Err(package.lacks("boot/vmlinuz"));
        }
        let initramfs = initramfs::build(&root, &release)?;
        Ok(Self {
            image,
            initramfs,
            modules: root.join("lib/modules"),
        })
    }
}

/// One version of a package that holds a kernel.
struct Package {
    name: String,
    version: String,
}

impl Package {
    fn lacks(&self, what: &'static str) -> Error {
        Error::NoKernel {
            package: self.name.clone(),
            what,
        }
    }
}

/// Follows `linux-image-amd64` and its like to the package with the kernel.
fn resolve(package: &KernelPackage) -> Result<Package> {
    let mut name = package.0.clone();
    loop {
        let shown = show(&name)?;
        let depends = field(&shown, "Depends").unwrap_or_default();
        let next = depends
            .split([',', '|'])
            .filter_map(|dependency| dependency.split_whitespace().next())
            .find(|dependency| dependency.starts_with("linux-image-") && *dependency != name);
        match next {
            Some(next) => name = next.to_owned(),
            None => {
                let version = field(&shown, "Version").unwrap_or_default().to_owned();
                return Ok(Package { name, version });
            }
        }
    }
}

fn show(name: &str) -> Result<String> {
    let shown = output(command("apt-cache").args(["show", "--no-all-versions", name]));
    match shown {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(Error::Failed { message, .. }) => Err(Error::UnknownPackage {
            package: name.to_owned(),
            message,
        }),
        Err(other) => Err(other),
    }
}

/// Returns a one-line field of a package's description.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .map(str::trim)
}

/// Downloads and unpacks, beside `root`, which appears only when all is in place.
fn fetch(package: &Package, cache: &Path, root: &Path) -> Result<()> {
    // Under the lock, so what is there is left from a run that was killed.
    let partial = cache.join("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(Error::file("remove", &partial))?;
    }
    let unpacked = partial.join("root");
    fs::create_dir_all(&unpacked).map_err(Error::file("create", &unpacked))?;

    // apt's own user cannot write to a cache in somebody's home.
    output(
        command("apt-get")
            .args(["--quiet=2", "-o", "APT::Sandbox::User=root", "download"])
            .arg(format!("{}={}", package.name, package.version))
            .current_dir(&partial),
    )?;
    let archive = fs::read_dir(&partial)
        .map_err(Error::file("read", &partial))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .ok_or_else(|| package.lacks(".deb file"))?;
    output(
        command("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(&unpacked),
    )?;

    // Later packages have moved below /usr, where depmod does not look.
    let (lib, usr_lib) = (unpacked.join("lib"), unpacked.join("usr/lib"));
    if !lib.exists() && usr_lib.join("modules").exists() {
        std::os::unix::fs::symlink("usr/lib", &lib).map_err(Error::file("create", &lib))?;
    }
    let release = release(package, &unpacked)?;
    output(command("depmod").arg("-b").arg(&unpacked).arg(release))?;
    fs::rename(&unpacked, root).map_err(Error::file("create", root))?;
    fs::remove_dir_all(&partial).map_err(Error::file("remove", &partial))
}

/// Returns what `uname -r` will say: the name of the only module tree.
fn release(package: &Package, root: &Path) -> Result<String> {
    fs::read_dir(root.join("lib/modules"))
        .ok()
        .and_then(|mut entries| entries.next()?.ok()?.file_name().into_string().ok())
        .ok_or_else(|| package.lacks("lib/modules"))
}

/// Returns the directory below the user's cache directory (XDG Base Directory Specification).
fn cache_directory() -> Result<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("pepd/guest"))
        .ok_or(Error::NoCache)
}

/// Keeps others from preparing a kernel until the file is closed.
fn lock(cache: &Path) -> Result<File> {
    let path = cache.join("lock");
    let file = File::create(&path).map_err(Error::file("create", &path))?;
    file.lock().map_err(Error::file("lock", &path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_name_cannot_be_an_option_or_a_path() {
        assert!(KernelPackage::new("linux-image-6.12.107+deb12-amd64").is_some());
        for bad in [
            "",
            "-o",
            "a",
            "../x",
            "linux image",
            "Linux-image",
            "x;y",
            "x=1",
        ] {
            assert!(KernelPackage::new(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let shown = "Package: p\nPre-Depends: linux-base\nDepends: kmod, x | y\n";
        assert_eq!(field(shown, "Depends"), Some("kmod, x | y"));
        assert_eq!(field(shown, "Version"), None);
    }
}
