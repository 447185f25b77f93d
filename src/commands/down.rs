//! `pepd down`: remove what a crash left.

use crate::cli::File;
use crate::config_file;
use crate::daemon::controls;
use crate::daemon::lock::Lock;
use crate::daemon::privileges;
use crate::exit::Result;
use crate::runtime;
use crate::ui::output::print;

/// Removes all kernel state of pepd, and says what it was; it is fine if there is none.
pub fn down(file: &File) -> Result {
    let config = config_file::read(file)?;
    privileges::require()?;
    let _lock = Lock::acquire(nix::unistd::getpid())?;
    let runtime = runtime::one_thread()?;
    let table = pepd_net::RouteTable(config.capture.table.0);
    let removed = runtime.block_on(pepd_net::remove(table, config.capture.mark))?;
    let controls = controls::remove_left()?;
    if removed.is_empty() && controls.is_empty() {
        return print(b"nothing of pepd's is here\n");
    }
    print(format!("{removed}{controls}").as_bytes())
}
