//! What the terminal of standard output understands.

use std::io::IsTerminal;

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
const WIDTH: usize = 80;

/// How to draw on standard output.
pub fn style() -> Style {
    let terminal = std::io::stdout().is_terminal();
    let columns = console::Term::stdout().size_checked().map(|(_, columns)| columns.into());
    style_of(terminal, columns, |name| std::env::var(name).ok())
}

/// The same, by the environment.
fn style_of(
    terminal: bool,
    columns: Option<usize>,
    variable: impl Fn(&str) -> Option<String>,
) -> Style {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let forced = set("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let wanted = terminal
        && set("CLICOLOR").is_none_or(|value| value != "0")
        && set("TERM").is_none_or(|value| value != "dumb");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    Style {
        width: columns.filter(|_| terminal).unwrap_or(WIDTH),
        colour: (wanted || forced) && set("NO_COLOR").is_none(),
        ascii: locale.is_some_and(|locale| is_ascii(&locale)),
    }
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

    fn with(terminal: bool, variables: &[(&str, &str)]) -> Style {
        style_of(terminal, Some(100), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        for (terminal, variables, colour) in [
            (true, &[][..], true),
            (false, &[], false),
            (true, &[("NO_COLOR", "1")], false),
            (true, &[("NO_COLOR", "")], true),
            (true, &[("TERM", "dumb")], false),
            (true, &[("TERM", "xterm-256color")], true),
            (true, &[("CLICOLOR", "0")], false),
            (false, &[("CLICOLOR", "1")], false),
            (false, &[("CLICOLOR_FORCE", "1")], true),
            (false, &[("CLICOLOR_FORCE", "0")], false),
            (false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        ] {
            assert_eq!(with(terminal, variables).colour, colour, "{variables:?}");
        }
    }

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
            assert_eq!(with(true, variables).ascii, ascii, "{variables:?}");
        }
    }

    #[test]
    fn no_terminal_has_eighty_columns() {
        assert_eq!(with(true, &[]).width, 100);
        assert_eq!(with(false, &[]).width, 80);
        assert_eq!(style_of(true, None, |_| None).width, 80);
    }
}
