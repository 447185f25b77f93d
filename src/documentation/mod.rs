//! The documentation stays true: no link leads nowhere, what is written as a command is one, and what is
//! written as a configuration is valid.

mod commands;
mod links;
mod page;
mod snippets;

/// Fails with all that was found, a line each: where, and what.
fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}
