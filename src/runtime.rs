//! The runtime of what this process does.

use tokio::runtime::{Builder, Runtime};

use crate::exit::{Failure, Result};

/// Makes a runtime that does everything on the thread that waits for it.
pub fn one_thread() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("start the runtime", error))
}
