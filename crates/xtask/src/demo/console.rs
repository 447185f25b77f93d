//! What the demo shows on the terminal.

use std::env;
use std::io::{self, IsTerminal, Write};

/// Prints the demo as numbered steps, each with the facts that it brought to light.
#[derive(Debug)]
pub struct Console {
    steps: u32,
    colour: bool,
}

impl Console {
    /// Creates a console before its first step; in colour on a terminal, unless NO_COLOR says
    /// otherwise.
    pub fn new() -> Self {
        let colour = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
        Self { steps: 0, colour }
    }

    /// Prints what the demo is about.
    pub fn introduce(&self, text: &str) {
        self.line(&format!("\n{text}"));
    }

    /// Begins the next step and prints its heading.
    pub fn step(&mut self, text: &str) {
        self.steps += 1;
        let step = self.styled("1", &format!("{}. {text}", self.steps));
        self.line(&format!("\n{step}"));
    }

    /// Prints what a program or a host has shown.
    pub fn fact(&mut self, who: &str, what: &str) {
        let who = self.styled("32", &format!("{who:>7}"));
        self.line(&format!("{who}  {what}"));
    }

    /// Prints a drawing, indented.
    pub fn picture(&mut self, lines: &str) {
        self.line("");
        for line in lines.lines() {
            self.line(format!("    {line}").trim_end());
        }
        self.line("");
    }

    /// Prints the text of a file, marked as a quotation.
    pub fn quote(&mut self, text: &str) {
        for line in text.lines() {
            let line = self.styled("2", &format!("    │ {line}"));
            self.line(&line);
        }
    }

    /// Prints the end of the demo.
    pub fn end(&mut self) {
        self.line("\nThe namespaces and everything in them are gone.");
    }

    fn styled(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Prints a line at once, whatever reads it; a reader that has gone is no reason to stop.
    fn line(&self, text: &str) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}
