//! The tables of the older iptables, which nft does not list.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::prefix::Family;

/// The kernel's lists, which only root may open.
static OPENED: OnceLock<[Option<File>; 2]> = OnceLock::new();

/// Opens the kernel's lists of tables for as long as this process lives: to be called while it is
/// root, if it will not be.
pub fn open_iptables_lists() {
    OPENED.get_or_init(|| Family::ALL.map(|family| File::open(path(family)).ok()));
}

/// Tells whether there is a table of that name; what cannot be known is `unknown`.
pub(crate) fn has_table(family: Family, name: &str, unknown: bool) -> bool {
    match names(family) {
        Ok(names) => names.lines().any(|line| line == name),
        // Nobody has loaded that iptables.
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(_) => unknown,
    }
}

fn names(family: Family) -> io::Result<String> {
    let opened = OPENED.get().and_then(|lists| match family {
        Family::V4 => lists[0].as_ref(),
        Family::V6 => lists[1].as_ref(),
    });
    match opened {
        Some(list) => read_again(list),
        None => std::fs::read_to_string(path(family)),
    }
}

/// Reads a list from its beginning, as it is now.
fn read_again(list: &File) -> io::Result<String> {
    let mut names = Vec::new();
    let mut some = [0; 512];
    loop {
        match list.read_at(&mut some, names.len() as u64)? {
            0 => return Ok(String::from_utf8_lossy(&names).into_owned()),
            read => names.extend_from_slice(some.get(..read).unwrap_or_default()),
        }
    }
}

fn path(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/net/ip_tables_names",
        Family::V6 => "/proc/net/ip6_tables_names",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_kernels_is_read_whole_and_again() {
        let list = File::open("/proc/self/net/netstat").unwrap();
        for _ in 0..2 {
            let lines = read_again(&list).unwrap();
            assert!(lines.starts_with("TcpExt:"), "{lines}");
            assert!(lines.len() > 512 && lines.ends_with('\n'), "{lines}");
        }
    }
}
