//! What a measurement reads, so that it can be brought into the guest's memory.
//!
//! The guest keeps what it has read from the host, but asks again at each open and at each
//! symbolic link. So the links on the way to a file count as much as the file.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::error::{Error, Result};
use super::programs::{find, libraries};

/// What programs look at unasked: the links of a merged /usr, the loader's index, the locale,
/// the tables of the C library and of iproute2. Missing ones are left out.
const USUAL: [&str; 17] = [
    "/bin/sh",
    "/etc/alternatives",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/iproute2",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mtab",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/services",
    "/lib",
    "/lib64",
    "/sbin",
    "/usr/lib/locale/C.utf8",
];

/// Linux' own limit of links in one path (path_resolution(7)).
const MOST_LINKS: usize = 40;

const GUESTS_OWN: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Files, directories and symbolic links to copy. Of a directory everything is copied, of a link
/// only the link.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) links: BTreeSet<PathBuf>,
    pub(super) targets: BTreeSet<PathBuf>,
}

impl Copies {
    /// Returns what `names` name, the links on the way, and the libraries of the programs among it.
    /// Relative paths start at `directory`; what is not there is looked for in `PATH`.
    pub(super) fn of(names: &[OsString], directory: &Path) -> Result<Self> {
        let mut copies = Self::default();
        for name in names {
            let path = locate(name, directory)
                .ok_or_else(|| Error::NothingToCopy(name.to_string_lossy().into_owned()))?;
            copies.add_with_libraries(&path);
        }
        Ok(copies)
    }

    /// Adds what programs look at unasked.
    pub(super) fn add_usual(&mut self) {
        for path in USUAL.map(Path::new) {
            // Of these only the links are copied, not everything behind them.
            if fs::read_link(path).is_ok_and(|target| target.starts_with("usr")) {
                self.links.insert(path.to_owned());
            } else if path.exists() {
                self.add_with_libraries(path);
            }
        }
    }

    fn add_with_libraries(&mut self, path: &Path) {
        self.add(path);
        if path.is_file() {
            for library in libraries(path) {
                self.add(&library);
            }
        }
    }

    fn add(&mut self, path: &Path) {
        let target = follow(path, &mut self.links);
        // The guest has its own of these: nothing to copy, and they change while they are read.
        if !GUESTS_OWN.iter().any(|own| target.starts_with(own)) {
            self.targets.insert(target);
        }
    }
}

/// Resolves `path`, an absolute one, and notes the symbolic links that it leads over.
fn follow(path: &Path, links: &mut BTreeSet<PathBuf>) -> PathBuf {
    let reversed = |path: &Path| -> Vec<OsString> {
        path.components()
            .rev()
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let mut resolved = PathBuf::new();
    let mut rest = reversed(path);
    let mut followed = 0;
    while let Some(part) = rest.pop() {
        if part == Component::ParentDir.as_os_str() {
            resolved.pop();
            continue;
        }
        // An absolute link starts with `/`, which replaces what was resolved.
        let next = resolved.join(&part);
        match fs::read_link(&next) {
            Ok(target) if followed < MOST_LINKS => {
                followed += 1;
                links.insert(next);
                rest.extend(reversed(&target));
            }
            _ => resolved = next,
        }
    }
    resolved
}

fn locate(name: &OsStr, directory: &Path) -> Option<PathBuf> {
    let path = directory.join(name);
    if path.exists() {
        return Some(path);
    }
    let is_plain = Path::new(name).components().count() == 1;
    is_plain.then(|| find(name)).flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_link_on_the_way_is_noted() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("real")).unwrap();
        fs::write(root.join("real/file"), "").unwrap();
        symlink("real", root.join("relative")).unwrap();
        symlink(
            root.join("relative/../relative/file"),
            root.join("absolute"),
        )
        .unwrap();

        let mut links = BTreeSet::new();
        let target = follow(&root.join("absolute"), &mut links);
        assert_eq!(target, root.join("real/file"));
        assert_eq!(
            links,
            BTreeSet::from([root.join("absolute"), root.join("relative")])
        );
    }

    #[test]
    fn a_loop_of_links_ends() {
        let folder = tempfile::tempdir().unwrap();
        symlink("loop", folder.path().join("loop")).unwrap();
        follow(&folder.path().join("loop"), &mut BTreeSet::new());
    }

    #[test]
    fn a_program_brings_its_libraries() {
        let copies = Copies::of(&["sh".into()], Path::new("/")).unwrap();
        let has = |name| copies.targets.iter().any(|path| path.ends_with(name));
        assert!(has("libc.so.6"), "{copies:?}");
    }
}
