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
    let starts = text.char_indices().map(|(at, c)| &text[..at + c.len_utf8()]);
    starts.take_while(|start| width(start) <= columns).last().unwrap_or("")
}

/// The longest end of at most `columns`.
fn tail(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().rev().map(|(at, _)| &text[at..]);
    ends.take_while(|end| width(end) <= columns).last().unwrap_or("")
}

/// `text` in ASCII: drawings in characters that are alike, anything else by its number.
pub fn ascii(text: &str) -> String {
    let mut spelled = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii() => spelled.push(c),
            '·' => spelled.push('|'),
            '…' => spelled.push_str("..."),
            '▕' => spelled.push('['),
            '▏' => spelled.push(']'),
            '█' => spelled.push('#'),
            '▓' => spelled.push('+'),
            '▒' => spelled.push('='),
            '░' => spelled.push('-'),
            c => spelled.extend(c.escape_unicode()),
        }
    }
    spelled
}

/// Words in lines of at most `room` columns, `first` for the first; a longer word has a line of its
/// own.
pub fn wrapped<W: AsRef<str>>(
    words: impl Iterator<Item = W>,
    first: usize,
    room: usize,
) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut left) = (String::new(), first);
    for word in words {
        let word = word.as_ref();
        let gap = usize::from(!line.is_empty());
        if gap + width(word) > left && (gap > 0 || first < room && lines.is_empty()) {
            lines.push(std::mem::take(&mut line));
            left = room;
        } else if gap > 0 {
            line.push(' ');
            left -= 1;
        }
        line += word;
        left = left.saturating_sub(width(word));
    }
    lines.push(line);
    lines
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
