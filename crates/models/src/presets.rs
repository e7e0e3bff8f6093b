//! Built-in configurations, for plans and for checkpoints of random weights.

use crate::Error;

/// Name, and the text of its `config.json`.
const PRESETS: &[(&str, &str)] = &[
    ("llama-demo", include_str!("presets/llama-demo.json")),
    ("qwen2-0.5b", include_str!("presets/qwen2-0.5b.json")),
    ("llama-1b", include_str!("presets/llama-1b.json")),
    ("lfm2-1.2b", include_str!("presets/lfm2-1.2b.json")),
    ("gpt-j-6b", include_str!("presets/gpt-j-6b.json")),
    ("opt-6.7b", include_str!("presets/opt-6.7b.json")),
    ("llama-7b", include_str!("presets/llama-7b.json")),
    ("gemma-3n-e4b", include_str!("presets/gemma-3n-e4b.json")),
    ("olmoe-1b-7b", include_str!("presets/olmoe-1b-7b.json")),
    ("mistral-7b", include_str!("presets/mistral-7b.json")),
    ("falcon-mamba-7b", include_str!("presets/falcon-mamba-7b.json")),
    ("lfm2-8b-a1b", include_str!("presets/lfm2-8b-a1b.json")),
    ("qwen3.5-9b", include_str!("presets/qwen3.5-9b.json")),
    ("t0pp", include_str!("presets/t0pp.json")),
    ("deepseek-v2-lite", include_str!("presets/deepseek-v2-lite.json")),
    ("gpt-oss-20b", include_str!("presets/gpt-oss-20b.json")),
    ("glm-4.7-flash", include_str!("presets/glm-4.7-flash.json")),
    ("qwen3-30b-a3b", include_str!("presets/qwen3-30b-a3b.json")),
    ("qwen3.5-35b-a3b", include_str!("presets/qwen3.5-35b-a3b.json")),
    ("jamba-1.5-mini", include_str!("presets/jamba-1.5-mini.json")),
    ("qwen3-next-80b-a3b", include_str!("presets/qwen3-next-80b-a3b.json")),
    ("glm-4.5-air", include_str!("presets/glm-4.5-air.json")),
    ("llama-4-scout", include_str!("presets/llama-4-scout.json")),
    ("gpt-oss-120b", include_str!("presets/gpt-oss-120b.json")),
    ("mistral-small-4", include_str!("presets/mistral-small-4.json")),
    ("deepseek-v4-flash", include_str!("presets/deepseek-v4-flash.json")),
    ("jamba-1.5-large", include_str!("presets/jamba-1.5-large.json")),
    ("llama-4-maverick", include_str!("presets/llama-4-maverick.json")),
    ("longcat-flash", include_str!("presets/longcat-flash.json")),
    ("deepseek-v3", include_str!("presets/deepseek-v3.json")),
    ("deepseek-v3.2", include_str!("presets/deepseek-v3.2.json")),
    ("glm-5", include_str!("presets/glm-5.json")),
    ("kimi-k2-thinking", include_str!("presets/kimi-k2-thinking.json")),
];

/// The names of the built-in configurations, smallest first.
///
/// | name | parameters | bytes, bf16 unless said | shape of |
/// |---|---|---|---|
/// | `llama-demo` | 254 M | 509 MB | a small Llama 3 with grouped queries |
/// | `qwen2-0.5b` | 494 M | 988 MB | Qwen 2 0.5B |
/// | `llama-1b` | 1.10 B | 2.20 GB | TinyLlama 1.1B |
/// | `lfm2-1.2b` | 1.17 B | 2.34 GB | LFM2 1.2B: short convolutions in ten layers of sixteen |
/// | `gpt-j-6b` | 6.05 B | 12.1 GB | GPT-J 6B |
/// | `opt-6.7b` | 6.66 B | 13.3 GB | OPT 6.7B |
/// | `llama-7b` | 6.74 B | 13.5 GB | Llama 2 7B |
/// | `gemma-3n-e4b` | 6.84 B | 13.7 GB | Gemma 3n E4B, its text part: a third are tables of which a token reads a row |
/// | `olmoe-1b-7b` | 6.92 B | 13.8 GB | OLMoE 1B-7B: 64 experts, of which a token uses 8 |
/// | `mistral-7b` | 7.24 B | 14.5 GB | Mistral 7B 0.1 |
/// | `falcon-mamba-7b` | 7.27 B | 14.5 GB | Falcon Mamba 7B: Mamba in all layers |
/// | `lfm2-8b-a1b` | 8.34 B | 16.7 GB | LFM2 8B-A1B: 32 experts, of which a token uses 4, and short convolutions |
/// | `qwen3.5-9b` | 8.95 B | 17.9 GB | Qwen3.5 9B: linear attention in three layers of four |
/// | `t0pp` | 11.1 B | 22.3 GB | T0pp, a T5 of version 1.1 |
/// | `deepseek-v2-lite` | 15.7 B | 31.4 GB | DeepSeek-V2-Lite: 64 experts, of which a token uses 6 |
/// | `gpt-oss-20b` | 20.9 B | 13.8 GB, experts in MXFP4 | gpt-oss 20B: 32 experts, of which a token uses 4 |
/// | `glm-4.7-flash` | 29.9 B | 59.9 GB | GLM-4.7-Flash: 64 experts, of which a token uses 4 |
/// | `qwen3-30b-a3b` | 30.5 B | 61.1 GB | Qwen3 30B-A3B: 128 experts, of which a token uses 8 |
/// | `qwen3.5-35b-a3b` | 34.7 B | 69.3 GB | Qwen3.5 35B-A3B: 256 experts, of which a token uses 8, and linear attention |
/// | `jamba-1.5-mini` | 51.6 B | 103 GB | Jamba 1.5 Mini: in every other layer 16 experts, of which a token uses 2, and Mamba in seven layers of eight |
/// | `qwen3-next-80b-a3b` | 79.7 B | 159 GB | Qwen3-Next 80B-A3B: 512 experts, of which a token uses 10, and linear attention |
/// | `glm-4.5-air` | 107 B | 214 GB | GLM-4.5-Air: 128 experts, of which a token uses 8 |
/// | `llama-4-scout` | 108 B | 216 GB | Llama 4 Scout, its text part: 16 experts, of which a token uses 1, and one more |
/// | `gpt-oss-120b` | 117 B | 65.2 GB, experts in MXFP4 | gpt-oss 120B: 128 experts, of which a token uses 4 |
/// | `mistral-small-4` | 119 B | 238 GB | Mistral Small 4, its text part: 128 experts, of which a token uses 4, and one more |
/// | `deepseek-v4-flash` | 284 B | 156 GB, in fp8, experts in 4 bits | DeepSeek-V4-Flash: 256 experts, of which a token uses 6, and attention over entries for blocks of tokens |
/// | `jamba-1.5-large` | 399 B | 797 GB | Jamba 1.5 Large: the same, wider and deeper |
/// | `llama-4-maverick` | 401 B | 801 GB | Llama 4 Maverick, its text part: in every other layer 128 experts, of which a token uses 1, and one more |
/// | `longcat-flash` | 561 B | 1.12 TB | LongCat-Flash: 512 experts and 256 without weights, of which a token uses 12 |
/// | `deepseek-v3` | 671 B | 673 GB, in fp8 | DeepSeek-V3: 256 experts, of which a token uses 8 |
/// | `deepseek-v3.2` | 672 B | 674 GB, in fp8 | DeepSeek-V3.2: the same, and attention over 2,048 tokens that an indexer chooses |
/// | `glm-5` | 744 B | 1.49 TB | GLM-5: 256 experts, of which a token uses 8, and such attention |
/// | `kimi-k2-thinking` | 1.03 T | 594 GB, experts in integers of 4 bits | Kimi K2 Thinking: 384 experts, of which a token uses 8 |
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The text of the built-in configuration's `config.json`.
///
/// # Errors
/// There is none of that name; the message lists those there are.
pub fn config(name: &str) -> Result<&'static str, Error> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text).ok_or_else(|| {
        Error::Preset { name: name.to_owned(), known: names().collect::<Vec<_>>().join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    #[test]
    fn parameters_are_as_documented() {
        for (name, parameters) in [
            ("llama-demo", 254_313_472),
            ("llama-1b", 1_100_048_384),
            ("lfm2-1.2b", 1_170_340_608),
            ("lfm2-8b-a1b", 8_339_930_560),
            ("gpt-j-6b", 6_050_882_784),
            ("opt-6.7b", 6_658_473_984),
            ("llama-7b", 6_738_415_616),
            ("qwen2-0.5b", 494_032_768),
            ("gemma-3n-e4b", 6_835_235_568),
            ("olmoe-1b-7b", 6_919_161_856),
            ("mistral-7b", 7_241_732_096),
            ("falcon-mamba-7b", 7_272_665_088),
            ("qwen3.5-9b", 8_953_803_264),
            ("t0pp", 11_135_332_352),
            ("deepseek-v2-lite", 15_706_484_224),
            ("gpt-oss-20b", 20_914_757_184),
            ("glm-4.7-flash", 29_943_393_920),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("qwen3.5-35b-a3b", 34_660_610_688),
            ("qwen3-next-80b-a3b", 79_674_391_296),
            ("jamba-1.5-mini", 51_570_323_328),
            ("jamba-1.5-large", 398_555_145_696),
            ("glm-4.5-air", 106_852_251_264),
            ("llama-4-scout", 107_769_861_120),
            ("deepseek-v4-flash", 284_332_230_231 + 40 * 256 + 3 * 129_280 * 6),
            ("llama-4-maverick", 400_711_848_960),
            ("gpt-oss-120b", 116_829_156_672),
            ("longcat-flash", 560_664_980_480),
            ("deepseek-v3", 671_026_419_200),
            ("deepseek-v3.2", 671_877_929_216 + 58 * 256),
            ("glm-5", 743_911_199_232 + 75 * 256),
            ("kimi-k2-thinking", 1_026_408_209_408 + 60 * 384),
            ("mistral-small-4", 118_972_826_624),
        ] {
            let config = ModelConfig::from_json(config(name).unwrap()).unwrap();
            assert_eq!(config.parameter_count(), parameters, "{name}");
            assert!(config.unknown_fields.is_empty(), "{name}");
        }
        assert_eq!(names().count(), 33);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = config("llama-2b").unwrap_err().to_string();
        let known: Vec<_> = names().collect();
        assert!(message.contains("llama-2b") && message.contains(&known.join(", ")), "{message}");
    }
}
