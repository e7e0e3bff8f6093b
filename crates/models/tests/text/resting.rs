//! Texts that rest in a cache, and others that go on from them: every token has the bits that it
//! has in a text of its own.

use crate::common::decoder_fixtures::FIXTURES;
use crate::common::dispatched::load;
use crate::common::reference::{cache_of, values};
use outsize_models::{
    Batch, CacheLayer, CacheOptions, DispatchedDecoder, Error, KvCache, KvDtype, Logits,
    ModelConfig, RowPrefix, WhenFull,
};

const TILE: u64 = 700;
const PLACES: usize = 4;
const CONTEXT: usize = 24;

/// Numbers that look like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(50) as u32 + 3).collect()
    }
}

/// A cache, and what it is to hold.
struct Walk<'m> {
    config: &'m ModelConfig,
    model: &'m DispatchedDecoder,
    cache: KvCache,
    /// Of each place its text; those that are run come first.
    texts: Vec<Vec<u32>>,
    live: usize,
    name: &'m str,
    /// How often a text went on from another one.
    gone_on: usize,
}

impl Walk<'_> {
    fn forward(&mut self, batch: &Batch) -> Vec<f32> {
        let logits = self.model.forward_batch(batch, &mut self.cache, Logits::Last).unwrap();
        values(logits.unwrap())
    }

    fn check(&self, logits: &[f32], places: std::ops::Range<usize>, what: &str) {
        let vocabulary = logits.len() / places.len();
        for (logits, place) in logits.chunks(vocabulary).zip(places) {
            let options =
                CacheOptions { dtype: self.cache.options().dtype, ..CacheOptions::new(CONTEXT) };
            let mut alone = cache_of(self.config, &options);
            let batch = Batch::left_padded(&[&self.texts[place]]).unwrap();
            let expected = self.model.forward_batch(&batch, &mut alone, Logits::Last).unwrap();
            assert!(logits == values(expected.unwrap()), "{}: {what} at {place}", self.name);
        }
    }

    fn step(&mut self, chance: &mut Chance) {
        let (live, room) = (self.live, PLACES - self.live);
        match chance.below(6) {
            0 | 1 if live > 0 && self.texts[..live].iter().all(|text| text.len() < CONTEXT) => {
                let ids: Vec<_> = (0..live).map(|_| chance.ids(1)).collect();
                self.texts.iter_mut().zip(&ids).for_each(|(text, ids)| text.extend(ids));
                let logits = self.forward(&Batch::left_padded(&ids).unwrap());
                self.check(&logits, 0..live, "a token");
            }
            2 if live > 0 => {
                let row = chance.below(live);
                self.cache.swap_rows(row, live - 1).unwrap();
                self.texts.swap(row, live - 1);
                self.live -= 1;
                self.cache.rest(self.live);
            }
            3 if room > 1 => {
                let [one, other] = [0; 2].map(|_| live + chance.below(room));
                self.cache.swap_rows(one, other).unwrap();
                self.texts.swap(one, other);
            }
            4 if room > 0 => {
                let count = 1 + chance.below(room.min(2));
                let new: Vec<_> = (0..count)
                    .map(|_| {
                        let tokens = 1 + chance.below(CONTEXT);
                        chance.ids(tokens)
                    })
                    .collect();
                self.begin(&vec![None; count], new, chance);
            }
            5 if room > 0 => {
                let Some((prefix, longest)) = self.prefix(chance, 0) else { return };
                let count = 1 + chance.below(longest);
                let (mut prefixes, mut new) = (vec![prefix], vec![chance.ids(count)]);
                // Others beside it, with a prefix of their own or none.
                while live + new.len() < PLACES && chance.below(2) == 0 {
                    let tokens = match self.prefix(chance, new.len()) {
                        Some((prefix, longest)) if longest >= count => {
                            prefixes.push(prefix);
                            count
                        }
                        _ => {
                            prefixes.push(None);
                            1 + chance.below(count)
                        }
                    };
                    new.push(chance.ids(tokens));
                }
                self.gone_on += 1;
                self.begin(&prefixes, new, chance);
            }
            _ => {}
        }
    }

    /// What a text could begin with as number `row` of those that begin, and how many tokens could
    /// come after.
    fn prefix(&self, chance: &mut Chance, row: usize) -> Option<(Option<RowPrefix>, usize)> {
        let place = chance.below(PLACES);
        let length = self.texts[place].len();
        // Often all of it, which is all that a state can go on from.
        let tokens = if chance.below(2) == 0 { length } else { chance.below(length + 1) };
        let lost = (self.live..self.live + row).contains(&place);
        let holds = !lost && (1..CONTEXT).contains(&tokens) && self.cache.holds(place, tokens);
        holds.then_some((Some(RowPrefix { place, tokens }), CONTEXT - tokens))
    }

    /// Runs texts that begin, in one pass or several.
    fn begin(&mut self, prefixes: &[Option<RowPrefix>], new: Vec<Vec<u32>>, chance: &mut Chance) {
        let batch = Batch::left_padded(&new).unwrap();
        self.cache.begin_behind(prefixes, &batch).unwrap();
        let mut logits = Vec::new();
        for piece in batch.chunks(1 + chance.below(CONTEXT)) {
            logits = self.forward(&piece);
        }
        self.cache.join();
        for (new, prefix) in new.into_iter().zip(prefixes) {
            let begins = prefix
                .map_or(Vec::new(), |prefix| self.texts[prefix.place][..prefix.tokens].to_vec());
            self.texts[self.live] = [begins, new].concat();
            self.live += 1;
        }
        self.check(&logits, self.live - batch.rows()..self.live, "a text");
    }
}

fn replacing(dtype: KvDtype) -> CacheOptions {
    let options = CacheOptions::new(CONTEXT);
    CacheOptions { batch: PLACES, dtype, when_full: WhenFull::Replace, ..options }
}

#[test]
fn texts_go_on_from_what_rests_with_the_bits_of_texts_of_their_own() {
    let (mut chance, mut models) = (Chance(7), 0);
    for name in FIXTURES {
        let (config, model) = load(name, TILE);
        let spec = config.cache();
        // Where rotations depend on a text's length, keys are another text's.
        let rescaled = spec.rescaled_beyond.is_some_and(|length| length < CONTEXT);
        if config.decoder_start().is_some() || spec.longest_context < CONTEXT || rescaled {
            continue;
        }
        let dtype = KvDtype::ALL[chance.below(2)];
        let cache = cache_of(&config, &replacing(dtype));
        let texts = vec![Vec::new(); PLACES];
        let mut walk =
            Walk { config: &config, model: &model, cache, texts, live: 0, name, gone_on: 0 };
        let mut steps = 0;
        while steps < 60 || walk.gone_on < 3 {
            walk.step(&mut chance);
            steps += 1;
            assert!(steps < 2000, "{name}: nothing can be gone on from");
        }
        models += 1;
    }
    assert!(models > 100, "{models}");
}

#[test]
fn what_a_text_cannot_go_on_from_is_refused() {
    let (config, model) = load("qwen3_next", TILE);
    let has_state = |layer: &CacheLayer| matches!(layer, CacheLayer::Recurrent(_));
    assert!(config.cache().layers.iter().any(has_state));
    let mut cache = cache_of(&config, &replacing(KvDtype::F32));
    let one = |tokens| Batch::left_padded(&[vec![5; tokens]]).unwrap();
    assert!(!cache.holds(0, 0) && !cache.holds(PLACES, 0));
    cache.begin_beside(&one(9)).unwrap();
    model.forward_batch(&one(9), &mut cache, Logits::Last).unwrap().unwrap();
    cache.join();
    cache.rest(0);
    // Later tokens are part of a state.
    assert!(cache.holds(0, 9) && !cache.holds(0, 8) && !cache.holds(0, 10));
    let prefix = |place, tokens| [Some(RowPrefix { place, tokens })];
    let error = cache.begin_behind(&prefix(0, 8), &one(1)).unwrap_err();
    assert!(matches!(error, Error::Row { row: 0, .. }), "{error:?}");
    let error = cache.begin_behind(&prefix(0, 9), &one(CONTEXT - 8)).unwrap_err();
    assert!(matches!(error, Error::ContextFull { position: 9, .. }), "{error:?}");
    let error = cache.swap_rows(0, PLACES).unwrap_err();
    assert!(matches!(error, Error::Row { row: PLACES, .. }), "{error:?}");
    // A text that fails to begin in its place is lost, and no other.
    cache.swap_rows(0, 1).unwrap();
    cache.begin_beside(&one(3)).unwrap();
    cache.forget_new();
    assert!(!cache.holds(0, 0) && cache.holds(1, 9));
    cache.clear();
    assert!(!cache.holds(1, 9));
}
