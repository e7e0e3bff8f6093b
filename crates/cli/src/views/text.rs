//! Strings of strangers, and how wide they are.

use unicode_width::UnicodeWidthStr;

/// `name` without anything that a terminal or a page would obey: control characters, marks that turn the
/// direction of text, and what is not printable are escaped.
pub fn plain(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut buffer = String::new();
    for c in name.chars() {
        if matches!(c, '"' | '\'' | '\\') {
            text.push(c);
            continue;
        }
        // After a letter, marks that combine with it are printable.
        buffer.clear();
        buffer.push('a');
        buffer.push(c);
        text.extend(buffer.escape_debug().skip(1));
    }
    text
}

/// Columns that `text` takes in a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `columns`: of what is too long the middle is left out, since names differ at their end.
pub fn fit(text: &str, columns: usize, ellipsis: &str) -> String {
    if width(text) <= columns {
        return text.to_string();
    }
    let room = columns.saturating_sub(width(ellipsis));
    if room == 0 {
        return head(ellipsis, columns).to_string();
    }
    let start = head(text, room / 3);
    let end = tail(&text[start.len()..], room - width(start));
    format!("{start}{ellipsis}{end}")
}

/// The longest beginning of at most `columns`.
pub fn head(text: &str, columns: usize) -> &str {
    let mut end = 0;
    for (at, c) in text.char_indices() {
        let next = at + c.len_utf8();
        if width(&text[..next]) > columns {
            break;
        }
        end = next;
    }
    &text[..end]
}

/// The longest end of at most `columns`.
fn tail(text: &str, columns: usize) -> &str {
    let mut start = text.len();
    for (at, _) in text.char_indices().rev() {
        if width(&text[at..]) > columns {
            break;
        }
        start = at;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        assert_eq!(plain("model.layers.0"), "model.layers.0");
        assert_eq!(plain("a\"b'c\\d"), "a\"b'c\\d");
        assert_eq!(
            plain("\u{1b}[2J\u{202e}x\u{9b}y\n"),
            "\\u{1b}[2J\\u{202e}x\\u{9b}y\\n"
        );
        assert_eq!(plain("e\u{301}层🦀"), "e\u{301}层🦀");
    }

    #[test]
    fn wide_and_combining_characters_count_right() {
        assert_eq!(width("层"), 2);
        assert_eq!(width("e\u{301}"), 1);
        assert_eq!(fit("层层层层", 8, "…"), "层层层层");
        assert_eq!(width(&fit("层层层层", 7, "…")), 7);
        assert_eq!(fit("model.layers.12", 10, "…"), "mod…ers.12");
    }

    proptest! {
        #[test]
        fn what_is_fitted_fits(text in "\\PC{0,40}", columns in 0usize..30) {
            let fitted = fit(&text, columns, "…");
            prop_assert!(width(&fitted) <= columns, "{fitted:?}");
        }

        #[test]
        fn any_name_becomes_plain(name in any::<String>()) {
            let shown = plain(&name);
            prop_assert!(!shown.chars().any(char::is_control), "{shown:?}");
        }
    }
}
