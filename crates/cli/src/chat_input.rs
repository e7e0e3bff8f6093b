//! What a user says in a chat: lines of a terminal that can be edited, or of a file or pipe.

use crate::error::Failure;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::{BufRead, IsTerminal, Lines, StdinLock};

/// Around a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Where messages come from.
pub enum ChatInput {
    /// A terminal.
    Terminal(Box<Editor<(), MemHistory>>),
    /// Anything else: nothing is shown before a message.
    Lines(Lines<StdinLock<'static>>),
}

impl ChatInput {
    /// Standard input.
    pub fn new() -> Result<Self, Failure> {
        let input = std::io::stdin();
        if !input.is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(Self::Lines(input.lock().lines()));
        }
        let editor = Editor::with_history(Config::default(), MemHistory::new());
        Ok(Self::Terminal(Box::new(editor.map_err(failed)?)))
    }

    /// Whether somebody sees what goes wrong, and can say it otherwise.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next message: a line, or all between two `"""`. None at the end of the input, or at
    /// Ctrl-D.
    pub fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let Some(line) = self.line(">>> ")? else {
                return Ok(None);
            };
            let Some(rest) = line.trim_start().strip_prefix(QUOTES) else {
                match line.trim() {
                    "" => continue,
                    _ => return Ok(Some(line)),
                }
            };
            let mut text = rest.to_owned();
            while !text.trim_end().ends_with(QUOTES) {
                let Some(line) = self.line("... ")? else {
                    return Err(Failure::Failed(format!(
                        "the last message begins with {QUOTES} and does not end with it: it is not answered"
                    )));
                };
                text.push('\n');
                text.push_str(&line);
            }
            let text = text.trim_end();
            let text = text[..text.len() - QUOTES.len()].trim_matches('\n');
            if !text.trim().is_empty() {
                return Ok(Some(text.to_owned()));
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Lines(lines) => lines.next().transpose().map_err(failed),
            Self::Terminal(editor) => loop {
                return match editor.readline(prompt) {
                    Ok(line) => {
                        // A line that is not kept is still a line.
                        let _ = editor.add_history_entry(&line);
                        Ok(Some(line))
                    }
                    Err(ReadlineError::Interrupted) => {
                        crate::views::output::say("Ctrl-D or /bye ends the chat");
                        continue;
                    }
                    Err(ReadlineError::Eof) => Ok(None),
                    Err(error) => Err(failed(error)),
                };
            },
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("cannot read what is said: {error}"))
}
