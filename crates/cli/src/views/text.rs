//! How wide text is in a terminal.

pub use outsize::checkpoint::plain;
use unicode_width::UnicodeWidthStr;

/// Columns that `text` takes in a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `columns`, with the middle left out if it is too long: names differ at their
/// ends.
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
    }
}
