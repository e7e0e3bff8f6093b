//! Strings from untrusted files, as messages and tables show them: escaped and short.

/// Characters of a name, or of a parser's message, that are shown.
const MOST: usize = 240;
/// Characters kept of the end of what is cut.
const TAIL: usize = 60;

/// `text` without anything that a terminal or a page would obey: control characters, marks that
/// turn the direction of text, and what is not printable are escaped.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut buffer = String::new();
    for c in text.chars() {
        if matches!(c, '"' | '\'' | '\\') {
            plain.push(c);
            continue;
        }
        // After a letter, marks that combine with it are printable.
        buffer.clear();
        buffer.push('a');
        buffer.push(c);
        plain.extend(buffer.escape_debug().skip(1));
    }
    plain
}

/// The same, cut after `most` characters.
pub fn shown(text: &str, most: usize) -> String {
    // Escaping makes a character up to ten times as long: only what may be shown is escaped.
    let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
    let plain = plain(&text[..end]);
    match plain.char_indices().nth(most) {
        Some((cut, _)) => format!("{}…", &plain[..cut]),
        None if end < text.len() => plain + "…",
        None => plain,
    }
}

/// A name in quotes: control characters escaped, and the middle left out if it is very long.
pub(crate) fn quoted(name: &str) -> String {
    // Escaping makes a character up to ten times as long: what is far too long is cut before, too.
    shortened(&format!("{:?}", shortened(name)))
}

/// A parser's message, which may repeat what it parsed: escaped, and the middle left out if it is
/// very long.
pub(crate) fn message(text: &str) -> String {
    plain(&shortened(text))
}

/// A text of which the middle is left out if it is very long.
pub(crate) fn shortened(text: &str) -> String {
    let Some((cut, _)) = text.char_indices().nth(MOST) else {
        return text.to_owned();
    };
    let mut tail = text.char_indices().rev().map(|(at, _)| at);
    let tail = tail.nth(TAIL - 1).unwrap_or(cut).max(cut);
    let (Some(head), Some(end)) = (text.get(..cut), text.get(tail..)) else {
        return String::new();
    };
    format!("{head}[… {} bytes …]{end}", tail - cut)
}

/// What is wrong with a name that no program gives a tensor or a shard, if anything.
///
/// The format allows any string. Control characters in a name serve only to take over the terminal
/// or the log that it is shown in, and a name of many kilobytes only to fill them.
pub(crate) fn name_fault(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME {
        Some("is a name of more than 4096 bytes")
    } else if name.chars().any(char::is_control) {
        Some("is a name with control characters")
    } else {
        None
    }
}

/// Bytes that a name may have: as many as a path on Linux.
pub(crate) const MAX_NAME: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_cut() {
        assert_eq!(quoted("a\u{1b}[2J\"\u{202e}"), r#""a\u{1b}[2J\"\u{202e}""#);
        assert_eq!(quoted(&"é".repeat(238)).chars().count(), 240);
        let long = quoted(&format!("{}{}", "\0".repeat(1 << 20), "end"));
        assert!(long.len() < 400, "{long}");
        assert!(long.starts_with("\"\\0\\0") && long.ends_with("end\""), "{long}");
        for len in 0..700 {
            let text: String = (0..len).map(|n| if n % 3 == 0 { 'é' } else { 'x' }).collect();
            let short = shortened(&text);
            assert_eq!(short == text, len <= MOST, "{len}");
            assert!(short.chars().count() <= MOST + TAIL + 25, "{len}: {short}");
            assert!(short.ends_with(text.chars().next_back().unwrap_or_default()) || len == 0);
        }
    }

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        assert_eq!(plain("model.layers.0"), "model.layers.0");
        assert_eq!(plain("a\"b'c\\d"), "a\"b'c\\d");
        assert_eq!(plain("\u{1b}[2J\u{202e}x\u{9b}y\n"), "\\u{1b}[2J\\u{202e}x\\u{9b}y\\n");
        assert_eq!(plain("e\u{301}层🦀"), "e\u{301}层🦀");
    }

    #[test]
    fn what_is_shown_is_short() {
        assert_eq!(shown("层层", 2), "层层");
        assert_eq!(shown("层层层", 2), "层层…");
        assert_eq!(shown("\u{1b}[2J", 3), "\\u{…");
        assert_eq!(shown("\u{1b}", 6), "\\u{1b}");
    }

    proptest::proptest! {
        #[test]
        fn any_name_becomes_plain(name in proptest::prelude::any::<String>()) {
            assert!(!plain(&name).chars().any(char::is_control), "{name:?}");
            assert!(shown(&name, 7).chars().count() <= 8);
        }
    }

    #[test]
    fn only_odd_names_are_faults() {
        assert_eq!(name_fault("model.layers.0.wéight 🦀"), None);
        assert_eq!(name_fault(&"x".repeat(MAX_NAME)), None);
        assert!(name_fault(&"x".repeat(MAX_NAME + 1)).unwrap().contains("4096"));
        for name in ["a\nb", "\u{1b}[31m", "\0", "\u{9b}31m", "\u{7f}"] {
            assert!(name_fault(name).unwrap().contains("control"), "{name:?}");
        }
    }
}
