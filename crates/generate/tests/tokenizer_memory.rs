//! What a tokenizer takes in memory is known before it is loaded.

use std::fs;
use std::process::Command;

use outsize_generate::{Tokenizer, TokenizerFile};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The folder that a child loads the tokenizer of.
const FOLDER: &str = "OUTSIZE_TEST_TOKENIZER";

/// A line of /proc/self/status in bytes.
fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let number = line.trim_start_matches(':').trim().strip_suffix(" kB").unwrap();
    number.parse::<u64>().unwrap() * 1024
}

/// In a process of its own: loads a tokenizer as a program does, and prints what that took.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    outsize_stream::return_freed_memory();
    // What code and libraries take is not the tokenizer's.
    let small = outsize_generate::byte_level_tokenizer(300).unwrap();
    let warm = tempfile::tempdir().unwrap();
    fs::write(warm.path().join("tokenizer.json"), small).unwrap();
    Tokenizer::open(warm.path()).unwrap().encode("a b", true).unwrap();
    // Forgets the peak so far.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let file = TokenizerFile::read(&folder).unwrap();
    let bound = file.memory();
    let tokenizer = Tokenizer::load(file).unwrap();
    let (peak, after) = (status("VmHWM"), status("VmRSS"));
    assert!(tokenizer.vocab_size() > 0);
    println!("MEMORY {} {} {bound}", peak - before, after.saturating_sub(before));
}

/// Bytes at the peak, bytes held, and the bound.
fn measure(text: &str) -> [u64; 3] {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), text).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find_map(|line| line.split_once("MEMORY "))
        .unwrap_or_else(|| panic!("{output:?}"));
    let numbers: Vec<u64> = line.1.split(' ').map(|n| n.parse().unwrap()).collect();
    [numbers[0], numbers[1], numbers[2]]
}

/// A sequence of numbers that looks random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    fn word(&mut self, letters: &[char], longest: usize) -> String {
        (0..=self.next(longest)).map(|_| letters[self.next(letters.len())]).collect()
    }
}

/// Different words, each with every character of `letters` before them.
fn words(numbers: &mut Numbers, letters: &[char], count: usize, longest: usize) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let mut words: Vec<String> = letters.iter().map(|letter| letter.to_string()).collect();
    seen.extend(words.iter().cloned());
    while words.len() < count {
        let word = numbers.word(letters, longest);
        if seen.insert(word.clone()) {
            words.push(word);
        }
    }
    words
}

fn added(count: usize, normalized: bool, special: bool) -> Value {
    (0..count)
        .map(|n| {
            json!({"id": n, "content": format!("<|added {n} token|>"), "special": special,
        "normalized": normalized, "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect()
}

fn file(model: Value, added: Value) -> String {
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null, "model": model}).to_string()
}

/// A model of a kind with about so many tokens, of words of up to `longest` letters.
fn model(
    kind: &str,
    numbers: &mut Numbers,
    letters: &[char],
    count: usize,
    longest: usize,
) -> Value {
    if let Some(kind) = kind.strip_suffix(" without a type") {
        let mut untyped = model(kind, numbers, letters, count, longest);
        untyped.as_object_mut().unwrap().remove("type");
        return untyped;
    }
    let words = words(numbers, letters, count, longest);
    let vocab: Map<String, Value> =
        words.iter().cloned().zip((0..).map(|n: u32| n.into())).collect();
    match kind {
        "WordPiece" => json!({"type": kind, "unk_token": "a", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}),
        "WordLevel" => json!({"type": kind, "unk_token": "a", "vocab": vocab}),
        "Unigram" => {
            let scored: Vec<(&String, f64)> =
                words.iter().map(|word| (word, -7.123456 - word.len() as f64)).collect();
            json!({"type": kind, "unk_id": 0, "vocab": scored})
        }
        "BPE without merges" => json!({"type": "BPE", "vocab": vocab, "merges": []}),
        _ => {
            // Every beginning of a word is a merge of a shorter one with a letter.
            let mut vocab: Map<String, Value> = letters
                .iter()
                .zip(0u32..)
                .map(|(letter, n)| (letter.to_string(), n.into()))
                .collect();
            let mut merges = Vec::new();
            for word in &words {
                let mut left = String::new();
                for letter in word.chars() {
                    let both = format!("{left}{letter}");
                    if !left.is_empty() && !vocab.contains_key(&both) {
                        vocab.insert(both.clone(), vocab.len().into());
                        merges.push([left, letter.to_string()]);
                    }
                    left = both;
                }
                if vocab.len() >= count {
                    break;
                }
            }
            match kind {
                "BPE" => json!({"type": "BPE", "vocab": vocab, "merges": merges}),
                _ => {
                    let merges: Vec<String> = merges.iter().map(|pair| pair.join(" ")).collect();
                    json!({"type": "BPE", "vocab": vocab, "merges": merges})
                }
            }
        }
    }
}

const KINDS: [&str; 10] = [
    "BPE",
    "BPE of old",
    "BPE without merges",
    "WordPiece",
    "WordLevel",
    "Unigram",
    "BPE without a type",
    "BPE of old without a type",
    "WordPiece without a type",
    "Unigram without a type",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn no_tokenizer_takes_more_than_its_bound(
        kind in 0..KINDS.len(),
        script in 0..3,
        count in prop_oneof![100usize..4_000, 10_000usize..60_000],
        longest in 3usize..30,
        added_tokens in prop_oneof![Just(0usize), 0usize..3000],
        (normalized, special, escaped) in any::<(bool, bool, bool)>(),
        seed in 1..u64::MAX,
    ) {
        let letters: Vec<char> = match script {
            0 => ('a'..='z').collect(),
            1 => ('\u{4e00}'..'\u{5000}').collect(),
            _ => "ab\u{120}\"\\".chars().chain('\u{100}'..'\u{120}').collect(),
        };
        let longest = if letters.len() > 100 { longest.min(6) } else { longest.max(5) };
        let model = model(KINDS[kind], &mut Numbers(seed), &letters, count, longest);
        let mut text = file(model, added(added_tokens, normalized, special));
        if escaped {
            // As Python writes it unless told otherwise.
            let spelled = |c: char| match c {
                c if c.is_ascii() => c.to_string(),
                c => format!("\\u{:04x}", u32::from(c)),
            };
            text = text.chars().map(spelled).collect();
        }
        let [peak, held, bound] = measure(&text);
        let what = format!("{} {script} {count} {longest} {added_tokens} {escaped}", KINDS[kind]);
        println!("{what}: {peak} {held} of {bound} {:.2}", bound as f64 / peak as f64);
        prop_assert!(peak <= bound, "{what}: {peak} of {bound}");
    }
}

#[test]
fn the_bound_is_no_wild_guess() {
    let letters: Vec<char> = ('a'..='z').collect();
    for kind in KINDS {
        let model = model(kind, &mut Numbers(3), &letters, 50_000, 9);
        let [peak, _, bound] = measure(&file(model, added(100, false, true)));
        println!("{kind}: {peak} of {bound} {:.2}", bound as f64 / peak as f64);
        assert!(bound < 2 * peak, "{kind}: {peak} of {bound}");
    }
}
