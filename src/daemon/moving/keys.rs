//! The keys that this box has with others: read while it is root's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use pepd_config::{Config, Neighbor};
use pepd_move::session::{Key, Name};

use crate::exit::{Failure, Result};
use crate::time_limit;

/// More than any file with a key has.
const LONGEST: u64 = 4096;

/// The longest that a file system may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The key with each neighbor, by its name.
#[derive(Clone, Debug)]
pub struct Keys(pub(super) Arc<BTreeMap<Name, Key>>);

impl Keys {
    /// Reads them; none where the configuration has no neighbors.
    ///
    /// # Errors
    ///
    /// If a file is not there, is no key, or may be read by others.
    pub fn read(config: &Config) -> Result<Option<Self>> {
        if config.moves.neighbors.is_empty() {
            return Ok(None);
        }
        let keys = config.moves.neighbors.iter().map(|neighbor| {
            with(neighbor).map_err(|why| {
                let path = neighbor.key.display();
                Failure::configuration(format!("[[neighbor]] {}: key {path}: {why}", neighbor.name))
            })
        });
        let keys: BTreeMap<_, _> = keys.collect::<Result<_>>()?;
        for (name, key) in &keys {
            let other = keys
                .iter()
                .find(|(other, its)| *other < name && *its == key);
            if let Some((other, _)) = other {
                let [name, other] = [name, other].map(Name::as_str);
                return Err(Failure::configuration(format!(
                    "[[neighbor]] {name}: its key is that of {other}, too, so that each could say that it is the other: \
                     make each pair of boxes a key of its own (`openssl rand -hex 32`)"
                )));
            }
        }
        Ok(Some(Self(Arc::new(keys))))
    }
}

/// Reads the key with a neighbor, or says what is wrong with it.
pub fn with(neighbor: &Neighbor) -> std::result::Result<(Name, Key), String> {
    let name = Name::new(&neighbor.name).ok_or("its name is none")?;
    let path = neighbor.key.clone();
    let text = time_limit::run(LIMIT, move || read(&path)).map_err(|late| late.to_string())??;
    let key = Key::parse(&text).map_err(|error| error.to_string())?;
    Ok((name, key))
}

fn read(path: &Path) -> std::result::Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let file = File::open(path).map_err(text)?;
    let found = file.metadata().map_err(text)?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    if ![0, geteuid().as_raw()].contains(&found.uid()) {
        return Err("it is not root's, and its owner may open it: chown root".to_owned());
    }
    if found.mode() & 0o077 != 0 {
        return Err("others than its owner may open it: chmod 600".to_owned());
    }
    let mut content = String::new();
    file.take(LONGEST)
        .read_to_string(&mut content)
        .map_err(text)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_nobody_else_may_read_is_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(read(&path).unwrap_err().contains("No such file"));
        std::fs::write(&path, "abc").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o640).unwrap();
        assert!(read(&path).unwrap_err().contains("chmod 600"));
        mode(0o600).unwrap();
        assert_eq!(read(&path).unwrap(), "abc");
        assert_eq!(read(folder.path()).unwrap_err(), "it is no file");
    }
}
