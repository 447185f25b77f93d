//! What pages write as a command of pepd's, pepd understands.

use std::fs;

use clap::Parser;
use clap::error::ErrorKind;

use super::none;
use super::page::{Kind, Page, root};
use crate::cli::Cli;

/// What stands for what is left out.
const ELLIPSIS: &str = "…";

#[test]
fn the_commands_in_blocks_are_understood() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in Page::all() {
        for block in page.code() {
            let is_shell = matches!(&block.kind, Kind::Fenced(language) if ["sh", "console"].contains(&&**language));
            if !is_shell && block.kind != Kind::Indented {
                continue;
            }
            for (at, line) in block.text.lines().enumerate() {
                for command in commands(line) {
                    seen += 1;
                    if let Err(error) = understand(&command) {
                        wrong.push(format!(
                            "{}: {}\n{error}",
                            page.at(block.line + at),
                            command.join(" ")
                        ));
                    }
                }
            }
        }
    }
    none(wrong);
    assert!(seen > 20, "{seen} commands were found");
}

/// Within a sentence a command may be named without all that it takes (`pepd flow`), or with a word in
/// capitals for what is to be put there (`pepd link LEG gone`).
#[test]
fn the_commands_in_sentences_are_understood() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in Page::all()
        .iter()
        .filter(|page| page.name != "CHANGELOG.md")
    {
        let code = page.code();
        for span in code.iter().filter(|code| code.kind == Kind::Span) {
            let words: Vec<_> = span.text.split_whitespace().map(str::to_owned).collect();
            let is_word = |word: &String| {
                word.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '-')
            };
            if words.first().is_none_or(|word| word != "pepd") || !words.get(1).is_some_and(is_word)
            {
                continue;
            }
            seen += 1;
            let Err(error) = understand(&words) else {
                continue;
            };
            let open = words.iter().any(|word| {
                word.len() > 1 && word.chars().all(|letter| letter.is_ascii_uppercase())
            });
            let forgiven = match error.kind() {
                ErrorKind::MissingRequiredArgument
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
                ErrorKind::InvalidValue | ErrorKind::ValueValidation => open,
                _ => false,
            };
            if !forgiven {
                wrong.push(format!("{}: {}\n{error}", page.at(span.line), span.text));
            }
        }
    }
    none(wrong);
    assert!(seen > 50, "{seen} commands were found");
}

/// What systemd runs.
#[test]
fn the_commands_of_the_unit_are_understood() {
    let unit = fs::read_to_string(root().join("config/pepd.service")).unwrap();
    let commands = unit.lines().filter_map(|line| line.strip_prefix("Exec"));
    let commands: Vec<_> = commands.filter_map(|line| line.split_once('=')).collect();
    let ours = commands
        .iter()
        .filter_map(|(_, command)| command.find("pepd ").map(|at| &command[at..]));
    let ours: Vec<_> = ours.filter_map(shlex::split).collect();
    assert!(ours.len() > 1, "{commands:?}");
    let wrong = ours.iter().filter_map(|command| understand(command).err());
    none(wrong.map(|error| error.to_string()).collect());
}

/// Has pepd parse a command, and do nothing.
fn understand(command: &[String]) -> Result<(), clap::Error> {
    match Cli::try_parse_from(command) {
        Err(error) if error.use_stderr() => {
            let open = command.iter().any(|word| word == ELLIPSIS);
            let mut before: Vec<_> = command
                .iter()
                .take_while(|word| *word != ELLIPSIS)
                .collect();
            // It may be an option's value that is left out.
            before.pop_if(|word| word.starts_with("--"));
            match open {
                // What has been left out may be what is missing, but what is there must be right.
                true => match Cli::try_parse_from(before) {
                    Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => Ok(()),
                    Err(error) if error.use_stderr() => Err(error),
                    _ => Ok(()),
                },
                false => Err(error),
            }
        }
        _ => Ok(()),
    }
}

/// The commands of pepd's in a line of a script: those that a line or a part of it begins with, or that
/// follow `timeout N` or `sudo`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let Some(words) = shlex::split(line) else {
        // Half of something in quotes, which no command of pepd's needs.
        assert!(!line.trim_start().starts_with("pepd "), "{line}");
        return Vec::new();
    };
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut begins = true;
    let mut inside = false;
    let mut after_timeout = false;
    for word in words {
        let (bare, ends) = match word.strip_suffix(';') {
            Some(bare) => (bare.trim_end_matches(';'), true),
            None => (&*word, false),
        };
        let separates = ["|", "||", "&&", "&", "then", "do"].contains(&&*word)
            || word.ends_with(')')
            || bare.is_empty();
        let redirects = word.starts_with(['<', '>']) || word.starts_with("2>");
        if separates || redirects {
            (begins, inside) = (separates, false);
            continue;
        }
        if begins && bare == "pepd" {
            found.push(vec![bare.to_owned()]);
            inside = true;
        } else if inside && let Some(command) = found.last_mut() {
            command.push(bare.to_owned());
        }
        let wraps = ["sudo", "timeout", "$"].contains(&bare);
        begins = ends || wraps || (after_timeout && !inside);
        after_timeout = bare == "timeout";
        inside &= !ends;
    }
    found
}

#[test]
fn commands_are_found_where_a_script_has_them() {
    let found = |line: &str| -> Vec<String> {
        commands(line).iter().map(|words| words.join(" ")).collect()
    };
    assert_eq!(found("pepd status   # well?"), ["pepd status"]);
    assert_eq!(
        found("    up) timeout 5 pepd link radio up ;;"),
        ["pepd link radio up"]
    );
    assert_eq!(found("pepd man | install /dev/stdin pepd.1"), ["pepd man"]);
    assert_eq!(
        found("true && sudo pepd down; pepd run >/dev/null"),
        ["pepd down", "pepd run"]
    );
    assert!(found("systemctl restart pepd").is_empty());
    assert!(found("cargo run --bin pepd run").is_empty());
}
