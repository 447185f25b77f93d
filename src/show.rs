//! `pepd show`: the kernel state that `run` would install.

use crate::cli::{File, print};
use crate::exit::Result;
use crate::{source, translate};

/// Prints the plan; touches nothing.
pub fn show(file: &File) -> Result {
    let config = source::read(&file.path)?;
    let listeners = pepd_relay::listener_addresses(&translate::settings(&config))?;
    let plan = pepd_net::Plan::new(&translate::request(&config, &listeners));
    print(plan.to_string().as_bytes())
}
