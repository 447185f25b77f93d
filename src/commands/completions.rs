//! `pepd completions`: what a shell completes.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::Result;
use crate::ui::output::print;

/// Prints the completions for `shell`.
pub fn completions(shell: Shell) -> Result {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pepd", &mut text);
    print(&text)
}
