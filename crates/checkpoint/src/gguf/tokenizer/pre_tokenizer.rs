//! Where a text is cut before byte pairs are merged.

use serde_json::{Value, json};

use super::super::fault::GgufFault;
use super::super::header::{GgufHeader, metadata};

const PRE: &str = "tokenizer.ggml.pre";

/// Where a text is cut before byte pairs are merged (`tokenizer.ggml.pre`).
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// What is kept together, one after the other; GPT-2's own expression if there are none.
    patterns: &'static [&'static str],
    /// Whether every digit stands by itself before that.
    digits: bool,
    /// Whether texts are brought to the normal form NFC.
    pub nfc: bool,
    /// Whether a word that is a token is not put together from byte pairs.
    pub ignore_merges: bool,
    /// Whether a text begins with a token of its own unless the file says otherwise.
    pub begins: bool,
}

const PLAIN: PreTokenizer = PreTokenizer {
    names: &["gpt-2"],
    patterns: &[],
    digits: false,
    nfc: false,
    ignore_merges: false,
    begins: false,
};

/// That of Llama 3.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits, that of Qwen2.
const WORDS_AND_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with marks as parts of words, that of Qwen3.5.
const MARKED_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// That of GPT-4o.
const CASED_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// That of Mistral's Tekken.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Those of DeepSeek's first models: lines, words, punctuation, Chinese and Japanese, single
/// digits.
const LINES: &[&str] = &[
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
];
/// Those of its first models of code.
const CODE_LINES: &[&str] = &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
/// That of Ling.
const LING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
/// That of Seed.
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// That of Jais 2, which has spaces in powers of two.
const JAIS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// That of K-EXAONE, whose words may have spaces.
const SPACED_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
/// That of Kimi K2: GPT-4o's, with Chinese by itself.
const HAN: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Digits in threes from the last one, of Cohere.
const THREES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

/// Those of DeepSeek-V3: digits, Chinese and Japanese, then words.
const SCRIPTS: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Those of Trinity: digits in threes, scripts of Asia, then words.
const ASIAN_SCRIPTS: &[&str] =
    &[THREES, r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+", SCRIPTS[2]];
/// Those of Laguna: lines, then words.
const WORDS_OF_LINES: &[&str] = &[r"[^\n]+|[\n]+", WORDS_AND_DIGITS];
/// Those of Youtu: Korean, Chinese and Japanese and their punctuation, then words.
const EASTERN_SCRIPTS: &[&str] = &[
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PLAIN,
    PreTokenizer {
        names: &[
            "phi-2",
            "olmo",
            "exaone4",
            "mpt",
            "jais",
            "mellum",
            "gigachat",
            "trillion",
            "granite-docling",
            "a.x-4.0",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
        ],
        patterns: &[WORDS],
        ignore_merges: true,
        begins: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"],
        patterns: &[WORDS],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        patterns: SCRIPTS,
        ..PLAIN
    },
    PreTokenizer { names: &["deepseek-llm"], patterns: LINES, ..PLAIN },
    PreTokenizer { names: &["deepseek-coder"], patterns: CODE_LINES, ..PLAIN },
    PreTokenizer { names: &["bailingmoe", "bailingmoe2", "llada-moe"], patterns: &[LING], ..PLAIN },
    PreTokenizer { names: &["seed-coder"], patterns: &[SEED], ..PLAIN },
    PreTokenizer { names: &["jais-2"], patterns: &[JAIS], ..PLAIN },
    PreTokenizer { names: &["exaone-moe"], patterns: &[SPACED_WORDS], ..PLAIN },
    PreTokenizer { names: &["afmoe"], patterns: ASIAN_SCRIPTS, ..PLAIN },
    PreTokenizer { names: &["laguna"], patterns: WORDS_OF_LINES, ..PLAIN },
    PreTokenizer { names: &["youtu"], patterns: EASTERN_SCRIPTS, ignore_merges: true, ..PLAIN },
    PreTokenizer { names: &["kimi-k2"], patterns: &[HAN], ..PLAIN },
    PreTokenizer { names: &["cohere2moe", "tiny_aya"], patterns: &[THREES, CASED_WORDS], ..PLAIN },
    PreTokenizer { names: &["qwen2"], patterns: &[WORDS_AND_DIGITS], nfc: true, ..PLAIN },
    PreTokenizer { names: &["qwen35"], patterns: &[MARKED_WORDS], nfc: true, ..PLAIN },
    PreTokenizer {
        names: &["deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2"],
        patterns: &[WORDS_AND_DIGITS],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        digits: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "minimax-m2", "kanana2"],
        patterns: &[CASED_WORDS],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        patterns: &[TEKKEN],
        ignore_merges: true,
        begins: true,
        ..PLAIN
    },
];

pub(super) fn pre_tokenizer(header: &GgufHeader) -> Result<&'static PreTokenizer, GgufFault> {
    let found = header.text(PRE)?.unwrap_or("");
    let known = PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&found));
    known.ok_or_else(|| {
        let names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).copied().collect();
        metadata(PRE, format!("{found:?} is not built in: {} are", names.join(", ")))
    })
}

impl PreTokenizer {
    pub fn json(&self) -> Value {
        let mut steps = Vec::new();
        if self.digits {
            steps.push(json!({ "type": "Digits", "individual_digits": true }));
        }
        steps.extend(self.patterns.iter().map(|pattern| split(pattern)));
        steps.push(byte_level(self.patterns.is_empty()));
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

pub(super) fn split(pattern: &str) -> Value {
    json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false,
    })
}

pub(super) fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex,
    })
}
