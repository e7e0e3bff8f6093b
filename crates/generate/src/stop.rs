//! Strings that end a text.

use crate::error::{Error, Result};

/// The most strings, and the most bytes of one: they may come from a file of a stranger's.
const MOST_STRINGS: usize = 256;
const MOST_BYTES: usize = 1024;

/// Strings that end a generated text. The text is cut before the first of them; none of it is ever
/// handed out.
///
/// The first is the one that is complete first, and of several that are complete at the same
/// character the longest. So it does not matter how the text is split into tokens. Strings are
/// compared byte by byte, without any normalization. (In transformers the same strings end a text
/// at the same token; there they stay in the text.)
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStrings {
    strings: Vec<String>,
}

impl StopStrings {
    /// These strings, in any order.
    ///
    /// # Errors
    /// [`Error::StopString`] for an empty string, one of more than 1024 bytes, or more than 256
    /// strings.
    pub fn new<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Result<Self> {
        let strings: Vec<String> = strings.into_iter().map(Into::into).collect();
        let refused = |reason: &str| Error::StopString { reason: reason.to_owned() };
        if strings.len() > MOST_STRINGS {
            return Err(refused(&format!("there are more than {MOST_STRINGS}")));
        }
        for string in &strings {
            if string.is_empty() {
                return Err(refused("one is empty, which would end every text at once"));
            }
            if string.len() > MOST_BYTES {
                return Err(refused(&format!("one has more than {MOST_BYTES} bytes")));
            }
        }
        Ok(Self { strings })
    }

    /// The strings, as given.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// Starts to look for the strings in a text that comes in parts.
    pub fn scan(&self) -> StopScan {
        StopScan {
            matchers: self.strings.iter().map(|string| Matcher::new(string)).collect(),
            held: String::new(),
        }
    }
}

/// Looks for stop strings in a text that comes in parts; see [`StopStrings::scan`].
#[derive(Debug, Clone, Default)]
pub struct StopScan {
    matchers: Vec<Matcher>,
    /// The end of the text so far, as long as it may be the beginning of a stop string.
    held: String,
}

impl StopScan {
    /// Takes the next part of the text. Returns the text before it and of it that is certainly not
    /// part of a stop string; and the string that ends the text, once it is complete; the rest of
    /// the part is dropped, and what is pushed then is another text.
    pub fn push(&mut self, part: &str) -> (String, Option<String>) {
        let start = self.held.len();
        self.held.push_str(part);
        for (end, byte) in (1..).zip(self.held.bytes()).skip(start) {
            let found = self
                .matchers
                .iter_mut()
                .filter_map(|matcher| matcher.advance(byte).then_some(&matcher.string));
            if let Some(longest) = found.max_by_key(|string| string.len()).cloned() {
                let mut text = std::mem::take(&mut self.held);
                text.truncate(end - longest.len());
                self.matchers.iter_mut().for_each(|matcher| matcher.matched = 0);
                return (text, Some(longest));
            }
        }
        let possible = self.matchers.iter().map(|matcher| matcher.matched).max();
        let held = self.held.split_off(self.held.len() - possible.unwrap_or(0));
        (std::mem::replace(&mut self.held, held), None)
    }

    /// Whether there is no string to look for.
    pub(crate) fn is_empty(&self) -> bool {
        self.matchers.is_empty()
    }

    /// Whether a string would be complete with such a part.
    pub(crate) fn would_end(&self, part: &str) -> bool {
        self.clone().push(part).1.is_some()
    }

    /// The rest of a text that ended without a stop string.
    pub fn finish(self) -> String {
        self.held
    }
}

/// How much of one string the text so far ends with, kept as Knuth, Morris and Pratt do.
#[derive(Debug, Clone)]
struct Matcher {
    string: String,
    /// For each number of matched bytes, how many still match if the next one does not.
    fallback: Vec<usize>,
    /// Bytes of the string that the text ends with. Both are UTF-8, so these are whole characters
    /// after whole characters.
    matched: usize,
}

impl Matcher {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut matched = 0;
        for (index, byte) in bytes.iter().enumerate().skip(1) {
            while matched > 0 && bytes[matched] != *byte {
                matched = fallback[matched];
            }
            matched += usize::from(bytes[matched] == *byte);
            fallback[index + 1] = matched;
        }
        Self { string: string.to_owned(), fallback, matched: 0 }
    }

    /// Takes the next byte of the text; whether the string is complete with it. Then `matched` must
    /// go back to 0.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.string.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text handed out in all, and the string that ended it.
    fn run(stops: &[&str], parts: &[&str]) -> (String, Option<String>) {
        let stops = StopStrings::new(stops.iter().copied()).unwrap();
        let mut scan = stops.scan();
        let mut text = String::new();
        for part in parts {
            let (certain, found) = scan.push(part);
            text.push_str(&certain);
            if let Some(found) = found {
                return (text, Some(found));
            }
        }
        (text + &scan.finish(), None)
    }

    fn found(text: &str, stop: &str) -> (String, Option<String>) {
        (text.to_owned(), Some(stop.to_owned()))
    }

    #[test]
    fn a_string_across_parts_is_found_and_cut() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), found("one ", "END"));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), found("caf", "é!"));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n", "\n"]), found("a\nb", "\n\n"));
        assert_eq!(run(&["aab"], &["aaa", "ab"]), found("aa", "aab"));
        assert_eq!(run(&["END"], &["one EN"]), ("one EN".to_owned(), None));
        assert_eq!(run(&[], &["one", "two"]), ("onetwo".to_owned(), None));
    }

    #[test]
    fn what_is_complete_first_wins_and_then_the_longest() {
        assert_eq!(run(&["abc", "b"], &["abc"]), found("a", "b"));
        assert_eq!(run(&["c", "abc", "bc"], &["xabc"]), found("x", "abc"));
    }

    #[test]
    fn text_is_held_back_only_as_long_as_it_may_matter() {
        let stops = StopStrings::new(["<end>"]).unwrap();
        let mut scan = stops.scan();
        assert_eq!(scan.push("a <e"), ("a ".to_owned(), None));
        assert_eq!(scan.push("n"), (String::new(), None));
        assert_eq!(scan.push("<"), ("<en".to_owned(), None));
        assert_eq!(scan.push("x"), ("<x".to_owned(), None));
    }

    #[test]
    fn strings_that_cannot_serve_are_refused() {
        for bad in [vec![String::new()], vec!["x".repeat(1025)], vec!["x".to_owned(); 257]] {
            let message = StopStrings::new(bad).unwrap_err().to_string();
            assert!(message.contains("stop string"), "{message}");
        }
        assert!(StopStrings::new(["x".repeat(1024)]).is_ok());
    }

    /// The same by its definition: every end in order, and of the strings that end there the
    /// longest.
    fn reference(stops: &[String], text: &str) -> (String, Option<String>) {
        for (index, character) in text.char_indices() {
            let seen = &text[..index + character.len_utf8()];
            let ending = stops.iter().filter(|stop| seen.ends_with(stop.as_str()));
            if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
                return found(&seen[..seen.len() - stop.len()], stop);
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// An alphabet so small that strings overlap with themselves and each other; `é` and `è`
        /// share their first byte.
        #[test]
        fn any_split_gives_the_same_text(
            stops in proptest::collection::vec("[abéè]{1,5}", 0..4),
            parts in proptest::collection::vec("[abéè]{0,4}", 0..12),
        ) {
            let text = parts.concat();
            let stops_ref: Vec<&str> = stops.iter().map(String::as_str).collect();
            let parts_ref: Vec<&str> = parts.iter().map(String::as_str).collect();
            let split = run(&stops_ref, &parts_ref);
            prop_assert_eq!(&split, &reference(&stops, &text));
            prop_assert_eq!(split, run(&stops_ref, &[&text]));
        }

        /// At no time is more handed out than the text that stays, whatever comes later.
        #[test]
        fn nothing_is_handed_out_too_early(
            stop in "[abé]{1,5}",
            parts in proptest::collection::vec("[abé]{0,3}", 1..12),
        ) {
            let stops = StopStrings::new([stop.clone()]).unwrap();
            let mut scan = stops.scan();
            let (mut given, mut seen) = (String::new(), String::new());
            for part in &parts {
                seen.push_str(part);
                let (certain, found) = scan.push(part);
                given.push_str(&certain);
                if found.is_some() {
                    break;
                }
                // What is held back is a beginning of the string, and the longest that the text
                // ends with.
                let held = &seen[given.len()..];
                prop_assert!(stop.starts_with(held));
                for (longer, _) in seen.char_indices().filter(|(index, _)| *index < given.len()) {
                    prop_assert!(!stop.starts_with(&seen[longer..]));
                }
            }
        }
    }
}
