//! What the terminal of standard output understands.

use anstream::{AutoStream, ColorChoice};

/// How a plan is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns that a line may have; at least 20 are used.
    pub width: usize,
    /// Whether escape sequences for colours are understood.
    pub colour: bool,
    /// Whether only ASCII is.
    pub ascii: bool,
}

impl Default for Style {
    /// For a file: 80 columns without colours.
    fn default() -> Self {
        Self { width: 80, colour: false, ascii: false }
    }
}

/// The width where none is known.
pub const WIDTH: usize = 80;

/// How to draw on standard output.
pub fn style() -> Style {
    let columns = console::Term::stdout().size_checked().map(|(_, columns)| columns.into());
    Style {
        width: columns.unwrap_or(WIDTH),
        colour: AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        ascii: locale(|name| std::env::var(name).ok()).is_some_and(|name| is_ascii(&name)),
    }
}

/// The locale of texts, by the environment.
fn locale(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set)
}

/// Whether a locale's character set is not UTF-8.
fn is_ascii(locale: &str) -> bool {
    let name = locale.split('@').next().unwrap_or_default();
    match name.split_once('.') {
        Some((_, set)) => !set.eq_ignore_ascii_case("utf-8") && !set.eq_ignore_ascii_case("utf8"),
        None => name == "C" || name == "POSIX",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_decides_on_ascii() {
        for (variables, ascii) in [
            (&[][..], false),
            (&[("LANG", "en_US.UTF-8")], false),
            (&[("LANG", "C.utf8")], false),
            (&[("LANG", "C")], true),
            (&[("LANG", "POSIX")], true),
            (&[("LANG", "de_DE.ISO-8859-15@euro")], true),
            (&[("LANG", "de_DE")], false),
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], true),
            (&[("LC_ALL", ""), ("LC_CTYPE", "en_US.UTF-8"), ("LANG", "C")], false),
        ] {
            let locale = locale(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.to_string())
            });
            assert_eq!(locale.is_some_and(|name| is_ascii(&name)), ascii, "{variables:?}");
        }
    }
}
