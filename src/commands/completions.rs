//! `pepd completions`: what a shell completes.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::Result;
use crate::ui::output::print;

/// Prints the completions for `shell`.
pub fn completions(shell: Shell) -> Result {
    print(&generated(shell))
}

fn generated(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(&Cli::command()), "pepd", &mut text);
    text
}

/// Returns a command without what is hidden, which clap_complete would offer: options that pepd gives
/// itself.
fn shown(command: &Command) -> Command {
    let options = command
        .get_arguments()
        .filter(|option| !option.is_hide_set());
    let subcommands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(options.cloned())
        .subcommands(subcommands.map(shown));
    // Its presence makes an option, its text nothing.
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of all options of all commands, hidden ones or the others.
    fn options(command: &Command, hidden: bool) -> Vec<String> {
        let own = command
            .get_arguments()
            .filter(|option| option.is_hide_set() == hidden);
        let own = own.filter_map(|option| option.get_long().map(str::to_owned));
        let below = command.get_subcommands().flat_map(|it| options(it, hidden));
        own.chain(below).collect()
    }

    #[test]
    fn what_is_hidden_is_offered_nowhere_and_all_else_is() {
        let (hidden, others) = (
            options(&Cli::command(), true),
            options(&Cli::command(), false),
        );
        assert!(hidden.contains(&"takes-over".to_owned()), "{hidden:?}");
        for shell in [
            Shell::Bash,
            Shell::Elvish,
            Shell::Fish,
            Shell::PowerShell,
            Shell::Zsh,
        ] {
            let text = String::from_utf8(generated(shell)).unwrap();
            let offers = |option: &str| {
                // Fish has `-l name`, the others `--name`.
                let mut written = [format!("--{option}"), format!("-l {option}")].into_iter();
                written.any(|name| {
                    let mut after = text.split(&name).skip(1);
                    after.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
                })
            };
            let offered: Vec<_> = hidden.iter().filter(|option| offers(option)).collect();
            assert!(offered.is_empty(), "{shell}: {offered:?}");
            let missing: Vec<_> = others.iter().filter(|option| !offers(option)).collect();
            assert!(missing.is_empty(), "{shell}: {missing:?}");
        }
    }
}
