//! The programs that pepd runs, and what the kernel has to execute for each.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Directories that a script's programs are in, beside those of PATH.
const USUAL: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Gives the directories to which execution has to be confined: those of the programs, and of the
/// loaders that they name. Where one of them is a script, it may need any program there is.
///
/// Directories, not the files themselves: an update of nft or of the C library puts other files in
/// their places, and the daemon goes on.
pub fn executable() -> BTreeSet<PathBuf> {
    let mut allowed = BTreeSet::new();
    for program in pepd_net::programs() {
        for path in places(Path::new(program)) {
            add(path, &mut allowed);
        }
    }
    let directory = |path: PathBuf| match path.parent() {
        Some(parent) if !path.is_dir() => parent.to_owned(),
        _ => path,
    };
    allowed.into_iter().map(directory).collect()
}

/// Tells whether there is no iptables but, as it seems, the one that does not speak nf_tables.
pub fn has_legacy_iptables_only() -> bool {
    let is_there = |name: &str| places(Path::new(name)).next().is_some();
    is_there("iptables") && !is_there("iptables-nft")
}

/// Gives the files that a name stands for: a path itself, else all of that name in PATH.
fn places(program: &Path) -> impl Iterator<Item = PathBuf> {
    let directories: Vec<PathBuf> = if program.is_absolute() {
        vec![PathBuf::from("/")]
    } else {
        path()
    };
    directories
        .into_iter()
        .filter_map(move |directory| directory.join(program).canonicalize().ok())
}

fn path() -> Vec<PathBuf> {
    let variable = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&variable)
        .filter(|path| path.is_absolute())
        .collect()
}

fn add(program: PathBuf, allowed: &mut BTreeSet<PathBuf>) {
    if !allowed.contains(&program) {
        match interpreter(&program) {
            Ok(Some(Interpreter::Loader(loader))) => {
                allowed.extend(loader.canonicalize());
            }
            Ok(Some(Interpreter::Script(shell))) => {
                allowed.extend(path().into_iter().chain(USUAL.map(PathBuf::from)));
                if let Ok(shell) = shell.canonicalize() {
                    add(shell, allowed);
                }
            }
            // A static program, or none at all.
            Ok(None) | Err(_) => {}
        }
        allowed.insert(program);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    /// Loads a program's libraries (`PT_INTERP`, elf(5)).
    Loader(PathBuf),
    /// Reads a script (`#!`, execve(2)).
    Script(PathBuf),
}

/// The most that is read of a path within a program.
const LONGEST_PATH: u64 = 4096;

fn interpreter(program: &Path) -> io::Result<Option<Interpreter>> {
    let file = File::open(program)?;
    let mut head = Vec::new();
    (&file).take(256).read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.trim_ascii_start();
        let word = line.split(u8::is_ascii_whitespace).next();
        return Ok(word.map(|word| Interpreter::Script(to_path(word))));
    }
    // ELF, 64 bits, little-endian: elf(5), Elf64_Ehdr and Elf64_Phdr.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let (table, size, count) = (u64_at(&head, 32), u16_at(&head, 54), u16_at(&head, 56));
    for number in 0..u64::from(count) {
        let mut entry = [0; 56];
        let at = number.saturating_mul(size.into()).saturating_add(table);
        file.read_exact_at(&mut entry, at)?;
        const PT_INTERP: [u8; 4] = [3, 0, 0, 0];
        if entry.starts_with(&PT_INTERP) {
            let length = u64_at(&entry, 32).min(LONGEST_PATH);
            let mut path = vec![0; usize::try_from(length).unwrap_or_default()];
            file.read_exact_at(&mut path, u64_at(&entry, 8))?;
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            return Ok(Some(Interpreter::Loader(to_path(path))));
        }
    }
    Ok(None)
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..).and_then(|rest| rest.first_chunk());
    eight.map_or(0, |eight| u64::from_le_bytes(*eight))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk());
    two.map_or(0, |two| u16::from_le_bytes(*two))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_names_its_loader_and_a_script_its_shell() {
        let test = env::current_exe().unwrap();
        match interpreter(&test).unwrap() {
            Some(Interpreter::Loader(loader)) => assert!(loader.exists(), "{loader:?}"),
            // Built for musl.
            None => {}
            other => panic!("{other:?}"),
        }
        let scratch = tempfile::tempdir().unwrap();
        let script = scratch.path().join("script");
        fs::write(&script, "#! /bin/sh -e\n").unwrap();
        let shell = Interpreter::Script(PathBuf::from("/bin/sh"));
        assert_eq!(interpreter(&script).unwrap(), Some(shell));
        fs::write(&script, "\x7fELF\x02\x01").unwrap();
        assert_eq!(interpreter(&script).unwrap(), None);
        fs::write(&script, "").unwrap();
        assert_eq!(interpreter(&script).unwrap(), None);
    }
}
