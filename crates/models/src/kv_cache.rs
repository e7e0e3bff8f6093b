//! Keys and values of the tokens seen so far, or what linear attention makes of them.

mod attention_layer;
mod entries;
mod images;
mod layer;
mod new_entries;
mod prompt;
mod recurrent;
mod resting;
mod rows;
mod shared;
mod snapshot;

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use outsize_kernels::gpu::can_compute;

use self::attention_layer::AttentionLayer;
pub(crate) use self::attention_layer::{Part, Seen};
use self::entries::EntryLayer;
pub(crate) use self::entries::{EntryInputs, SeenEntries};
use self::images::HeldImages;
pub(crate) use self::images::ImagePart;
pub(crate) use self::layer::RecurrentState;
use self::layer::{Layer, RecurrentLayer};
use self::prompt::Prompt;
pub use self::resting::RowPrefix;
use self::rows::WaitingRows;
use self::shared::SharedSeen;
use self::snapshot::Snapshot;
use crate::cache_options::window_and_capacity;
use crate::chosen_tokens::ChosenTokens;
use crate::{AttentionCache, Batch, CacheLayer, CacheOptions, CacheSpec, Error, WhenFull};

/// The longest context that can be asked for, in tokens: positions beyond are not exact in f32.
pub const MAX_CONTEXT: usize = 1 << 24;

/// The most texts that run side by side.
pub const MAX_BATCH: usize = 1 << 12;

/// Keys and values of the tokens seen so far, for a fixed number of texts.
///
/// Storage is allocated once; tokens are written in place. A layer holds no more tokens than its
/// attention can look back to: all of the context, or as many as its sliding window has. There the
/// newest token takes the oldest one's place.
///
/// Texts that run side by side are columns of equal length. A text shorter than the others has
/// padding before its first token, which nothing looks at; its positions count from its first
/// token.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Layer>,
    /// What cross-attention looks at.
    cross: Vec<AttentionLayer>,
    /// The prompt that this is of, once an encoder has read one.
    prompt: Option<Prompt>,
    spec: CacheSpec,
    options: CacheOptions,
    /// Columns held.
    position: usize,
    /// One past the last column that was written since the text began, be it by a pass that failed,
    /// or be it truncated since: what its place held before is gone.
    written: usize,
    /// Where the text is known to end, if it is run in several passes.
    expected: usize,
    /// Of each text, how many columns have no token: of as many as can begin while it holds
    /// nothing, then of those held.
    padding: Vec<usize>,
    /// The texts before these, which wait until these have begun.
    waiting: Option<WaitingRows>,
    /// Of each place, the columns of the text that rests there.
    resting: Vec<Option<Range<usize>>>,
    snapshot: Snapshot,
    images: HeldImages,
    /// What the indexer of a layer chose in this pass, for later layers that see the same.
    chosen: Option<(usize, Arc<ChosenTokens>)>,
    /// What layers of this pass look at, for later layers that look at the same.
    shared: SharedSeen,
}

impl KvCache {
    /// An empty cache for a model that asks for `spec`.
    ///
    /// # Errors
    /// A context of 0 or beyond [`MAX_CONTEXT`], a batch of 0 or beyond [`MAX_BATCH`]; a sequence
    /// without end for a model that cannot have one; a type that a device cannot hold; a prompt of
    /// 0 or beyond [`MAX_CONTEXT`] for a model with an encoder.
    pub fn new(spec: &CacheSpec, options: &CacheOptions, device: &Device) -> Result<Self, Error> {
        Self::on(spec, options, &vec![device.clone(); spec.layers.len()])
    }

    /// The same with each layer's keys and values on a device of its own. Attention is computed
    /// there.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// If there are fewer devices than layers.
    pub fn on(spec: &CacheSpec, options: &CacheOptions, devices: &[Device]) -> Result<Self, Error> {
        let (context, batch) = (options.context, options.sequences());
        if !(1..=MAX_CONTEXT).contains(&context) {
            return Err(Error::Context { context, max: MAX_CONTEXT });
        }
        if !(1..=MAX_BATCH).contains(&batch) {
            return Err(Error::Batch { batch, max: MAX_BATCH });
        }
        if let (WhenFull::Slide, Some(reason)) = (options.when_full, spec.cannot_slide) {
            return Err(Error::CannotSlide { reason });
        }
        let prompt = options.prompt;
        if !spec.cross.is_empty() && !(1..=MAX_CONTEXT).contains(&prompt) {
            return Err(Error::Prompt { tokens: prompt, capacity: prompt });
        }
        let dtype = options.dtype.dtype();
        if devices.iter().any(|device| !can_compute(device, dtype)) {
            return Err(Error::CacheDtype { dtype: options.dtype });
        }
        let storage = |index: usize, layer: &AttentionCache, (window, capacity), forgets| {
            let shape = [batch, layer.key_value_heads, capacity, layer.head_dim];
            let device = &devices[index];
            let zeros = || {
                let zeros = |()| Tensor::zeros(shape, (device, dtype));
                Some(device.memory_persistent_allocations((), zeros))
            };
            let values = if layer.keys_are_values { None } else { zeros() };
            AttentionLayer {
                window,
                chunk: layer.chunk(),
                capacity,
                keys: zeros(),
                values,
                keys_are_values: layer.keys_are_values,
                forgets,
                snapshot: None,
            }
        };
        let layers = spec.layers.iter().enumerate().map(|(at, layer)| Layer {
            attention: layer.kept_attention().map(|attention| {
                let sizes = window_and_capacity(attention.window, options);
                storage(at, attention, sizes, attention.forgets(options))
            }),
            entries: layer
                .entries()
                .map(|entries| Box::new(EntryLayer::new(entries, options, &devices[at]))),
            recurrent: layer.recurrent().map(|shape| {
                let state = Some(RecurrentState::zeros(shape, batch, &devices[at]));
                let (shape, snapshot) = (*shape, None);
                Box::new(RecurrentLayer { shape, state, keeps: true, snapshot })
            }),
        });
        let cross = spec.cross.iter().enumerate();
        let cross = cross.map(|(at, layer)| storage(at, layer, (usize::MAX, prompt), false));
        Ok(Self {
            layers: layers.collect(),
            cross: cross.collect(),
            prompt: None,
            spec: spec.clone(),
            options: *options,
            position: 0,
            written: 0,
            expected: 0,
            padding: vec![0; options.batch],
            waiting: None,
            resting: Vec::new(),
            snapshot: Snapshot::default(),
            images: HeldImages::default(),
            chosen: None,
            shared: SharedSeen::default(),
        })
    }

    /// One that keeps nothing, for one pass of whole sequences.
    pub(crate) fn without_storage(spec: &CacheSpec, batch: &Batch) -> Self {
        let layer = |layer: &CacheLayer| Layer {
            attention: layer.kept_attention().map(|layer| AttentionLayer {
                window: layer.window.unwrap_or(usize::MAX),
                chunk: layer.chunk(),
                capacity: 0,
                keys: None,
                values: None,
                keys_are_values: layer.keys_are_values,
                forgets: false,
                snapshot: None,
            }),
            entries: layer.entries().map(|entries| Box::new(EntryLayer::without_storage(entries))),
            recurrent: layer.recurrent().map(|shape| {
                let (shape, snapshot) = (*shape, None);
                Box::new(RecurrentLayer { shape, state: None, keeps: false, snapshot })
            }),
        };
        Self {
            layers: spec.layers.iter().map(layer).collect(),
            cross: Vec::new(),
            prompt: None,
            spec: spec.clone(),
            options: CacheOptions { batch: batch.rows(), ..CacheOptions::new(batch.tokens()) },
            position: 0,
            written: 0,
            expected: 0,
            padding: vec![0; batch.rows()],
            waiting: None,
            resting: Vec::new(),
            snapshot: Snapshot::default(),
            images: HeldImages::default(),
            chosen: None,
            shared: SharedSeen::default(),
        }
    }

    /// Bytes that such a cache holds.
    pub fn bytes(spec: &CacheSpec, options: &CacheOptions) -> u64 {
        let layers = spec.layers.iter().map(|layer| layer.bytes(options));
        let cross = spec.cross.iter().map(|layer| Self::cross_bytes(layer, options));
        layers.chain(cross).fold(0u64, u64::saturating_add)
    }

    /// Bytes that such a cache holds of the prompt, in one layer.
    pub fn cross_bytes(layer: &AttentionCache, options: &CacheOptions) -> u64 {
        layer.position_bytes(options).saturating_mul(options.prompt as u64)
    }

    /// What it was made for.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Tokens that it was made for.
    pub fn capacity(&self) -> usize {
        self.options.context
    }

    /// Tokens that it has seen of the longest text, which is the position of the next one.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many more tokens can be run.
    fn room(&self) -> usize {
        let end = match self.options.when_full {
            WhenFull::Refuse => self.options.context,
            WhenFull::Slide | WhenFull::Replace => MAX_CONTEXT,
        };
        end - self.position
    }

    /// Of each text, by how many columns of padding it begins later than the longest one.
    pub fn padding(&self) -> &[usize] {
        &self.padding
    }

    /// Forgets all tokens, those of a prompt that an encoder read too: new texts begin.
    pub fn clear(&mut self) {
        (self.prompt, self.waiting) = (None, None);
        (self.position, self.written, self.expected) = (0, 0, 0);
        self.padding = vec![0; self.options.batch];
        self.resting.clear();
        self.drop_snapshot();
        self.snapshot = Snapshot::default();
    }

    fn is_empty(&self) -> bool {
        self.position == 0 && self.prompt.is_none()
    }

    /// Forgets the tokens from `position` on, and what a pass that failed left of others; nothing
    /// happens if it holds fewer. What follows is then computed as if they had never been run.
    /// `truncate(0)` is [`clear`](Self::clear), and always works.
    ///
    /// # Errors
    /// A sliding window has moved on, and tokens that would be in sight at `position` again have
    /// been overwritten; or later tokens are part of a state. The cache stays as it was.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        if position == 0 {
            self.clear();
            return Ok(());
        }
        if position <= self.position {
            self.check_memory(position)?;
            if self.snapshot.is_behind(position) {
                self.drop_snapshot();
            }
            self.position = position;
        }
        self.forget_padding();
        Ok(())
    }

    /// Keeps of the padding what is before the columns held.
    fn forget_padding(&mut self) {
        self.expected = 0;
        for padding in &mut self.padding {
            *padding = (*padding).min(self.position);
        }
    }

    /// Begins texts at their column `position`, as if those before it had been run: what they would
    /// have left in the cache is not defined. So it is only right if nothing that matters
    /// [reaches](CacheSpec::reach) so far back. The cache must be empty.
    pub fn begin_at(&mut self, position: usize, batch: &Batch) {
        debug_assert_eq!(self.position, 0, "a text begins in an empty cache");
        (self.position, self.written) = (position, position);
        self.padding = batch.padding().iter().map(|padding| *padding.min(&position)).collect();
    }

    /// Says that the next `tokens` tokens are one text, run in several passes.
    ///
    /// It matters to models with dynamic rotary scaling alone: there the rotation depends on the
    /// length that the text has at the end of a pass, so that a prompt run in passes would differ
    /// from the same prompt run at once. Holds until these tokens are run, or the cache is cleared
    /// or truncated.
    pub fn expect(&mut self, tokens: usize) {
        self.expected = self.position.saturating_add(tokens);
    }

    /// The text's length at the end of a pass of `tokens` tokens, or of the passes that were
    /// announced.
    pub(crate) fn length_after(&self, tokens: usize) -> usize {
        (self.position + tokens).max(self.expected)
    }

    /// Checks that the cache is of the model's shape and can take the batch.
    pub(crate) fn check(&self, spec: &CacheSpec, batch: &Batch) -> Result<(), Error> {
        self.check_shape(spec, batch)?;
        self.check_images(batch)?;
        if !self.cross.is_empty() && self.prompt.is_none() {
            return Err(Error::NoPrompt);
        }
        let late = |(row, &padding): (usize, &usize)| {
            (padding > 0 && self.padding[row] < self.position).then_some(row)
        };
        if let Some(row) = batch.padding().iter().enumerate().find_map(late) {
            return Err(Error::Padding { row, position: self.position });
        }
        if batch.tokens() > self.room() {
            return Err(Error::ContextFull {
                position: self.position,
                tokens: batch.tokens(),
                capacity: self.position + self.room(),
            });
        }
        self.check_memory(self.position)
    }

    /// Checks that the cache is of the model's shape, is whole, and holds as many sequences, or has
    /// room for them.
    fn check_shape(&self, spec: &CacheSpec, batch: &Batch) -> Result<(), Error> {
        if let Some((found, needed)) = self.spec.difference(spec) {
            return Err(Error::CacheShape { found, needed });
        }
        let (rows, most) = (batch.rows(), self.options.batch);
        if self.is_empty() && rows > most {
            return Err(Error::BatchRows { rows, batch: most });
        }
        if !self.is_empty() && rows != self.rows() {
            return Err(Error::BatchRows { rows, batch: self.rows() });
        }
        let lost = self.layers.iter().position(Layer::is_lost);
        match lost.or(self.cross.iter().position(AttentionLayer::is_lost)) {
            Some(layer) => Err(Error::CacheLost { layer }),
            None => Ok(()),
        }
    }

    /// Checks that everything in sight of a token at `position` is still there, and that no state
    /// has later tokens in it.
    fn check_memory(&self, position: usize) -> Result<(), Error> {
        let (written, is_recurrent) = (self.written, |layer: &Layer| layer.recurrent.is_some());
        // A text that begins finds a state of zeros.
        if 0 < position && position < written && self.layers.iter().any(is_recurrent) {
            return Err(Error::CannotGoBack { position, written });
        }
        let gone = |layer: &&AttentionLayer| layer.oldest(written) > layer.oldest_seen(position);
        match self.layers.iter().flat_map(Layer::windows).find(gone) {
            None => Ok(()),
            Some(layer) => Err(Error::Forgotten {
                position,
                needed: layer.oldest_seen(position),
                oldest: layer.oldest(written),
            }),
        }
    }

    /// Begins a pass that has been [checked](Self::check).
    pub(crate) fn begin(&mut self, batch: &Batch) {
        if self.is_empty() {
            self.padding = vec![0; batch.rows()];
        }
        self.chosen = None;
        self.shared = SharedSeen::default();
        self.forget_shifts();
        self.begin_snapshot(batch.tokens());
        self.written = self.written.max(self.position + batch.tokens());
    }

    /// Takes a layer's keys and values, `[batch, key_value_heads, tokens, head_dim]` f32, of the
    /// columns behind those held, and gives all that the new tokens may look at. They are rounded
    /// to the cache's dtype there too, so that a text gives the same however it is cut into passes.
    ///
    /// The columns count only after [`advance`](Self::advance), so that a pass that fails midway
    /// leaves no trace in what can still be seen.
    pub(crate) fn see(
        &mut self,
        layer: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Result<Seen, Error> {
        let dtype = self.options.dtype.dtype();
        let slot = self.layers.get(layer).and_then(|layer| layer.attention.as_ref());
        let device = slot.and_then(AttentionLayer::device);
        let here = |new: Tensor<4>| match &device {
            Some(device) => new.to_device(device).cast(dtype),
            None => new.cast(dtype),
        };
        let keys = here(keys);
        let values = match slot.is_some_and(|slot| slot.keys_are_values) {
            true => keys.clone(),
            false => here(values),
        };
        self.snapshot_keys(layer, &keys, &values)?;
        let (first, position) = (self.first_row(), self.position);
        let slot = self.layers.get_mut(layer).and_then(|layer| layer.attention.as_mut());
        let seen = slot.and_then(|slot| slot.see(first, position, keys, values));
        seen.ok_or(Error::CacheLost { layer })
    }

    /// Keeps what the indexer of a layer chose until another one does.
    pub(crate) fn set_chosen(&mut self, layer: usize, chosen: Arc<ChosenTokens>) {
        self.chosen = Some((layer, chosen));
    }

    /// What the indexer of a layer chose in this pass.
    ///
    /// # Errors
    /// It is not known any more.
    pub(crate) fn chosen_by(&self, layer: usize) -> Result<Arc<ChosenTokens>, Error> {
        let chosen = self.chosen.as_ref().filter(|(of, _)| *of == layer);
        chosen.map(|(_, chosen)| chosen.clone()).ok_or(Error::CacheLost { layer })
    }

    /// Writes what [`see`](Self::see) held back, once nothing looks at the layer any more.
    pub(crate) fn keep(&mut self, layer: usize, seen: Seen) -> Result<(), Error> {
        let Some((keys, values)) = seen.into_held_back() else {
            return Ok(());
        };
        let first = self.first_row();
        self.layers
            .get_mut(layer)
            .and_then(|layer| layer.attention.as_mut())
            .and_then(|slot| slot.write(first, self.position, keys, values))
            .ok_or(Error::CacheLost { layer })
    }

    /// Counts a batch's columns as held, once all layers have them.
    pub(crate) fn advance(&mut self, batch: &Batch) {
        self.chosen = None;
        for (padding, more) in self.padding.iter_mut().zip(batch.padding()) {
            *padding += more;
        }
        self.end_snapshot(batch.tokens());
        self.count_images(batch);
        self.position += batch.tokens();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDtype, ModelConfig, presets};

    fn preset(name: &str) -> CacheSpec {
        let config = ModelConfig::from_json(presets::config(name).unwrap());
        config.unwrap().cache().clone()
    }

    #[test]
    fn bytes_are_counted() {
        let config = preset("llama-1b");
        let options = CacheOptions::new(2048);
        let bytes = 2 * 22 * 4 * 64 * 2048 * 4;
        assert_eq!(KvCache::bytes(&config, &options), bytes);
        let batch = CacheOptions { batch: 3, dtype: KvDtype::Bf16, ..options };
        assert_eq!(KvCache::bytes(&config, &batch), bytes * 3 / 2);
        let most = CacheOptions { batch: usize::MAX, ..CacheOptions::new(usize::MAX) };
        assert_eq!(KvCache::bytes(&config, &most), u64::MAX);
    }

    #[test]
    fn a_window_holds_no_more_than_it_sees() {
        let mut config = preset("mistral-7b");
        let per_token = 2 * 8 * 128 * 4;
        let bytes =
            |config: &CacheSpec, context| KvCache::bytes(config, &CacheOptions::new(context));
        assert_eq!(bytes(&config, 32_768), 32 * 4096 * per_token);
        assert_eq!(bytes(&config, 1000), 32 * 1000 * per_token);
        let window = |layer: &mut CacheLayer, window| match layer {
            CacheLayer::Attention(layer) => layer.window = window,
            _ => unreachable!("attention alone"),
        };
        window(&mut config.layers[7], None);
        assert_eq!(bytes(&config, 32_768), (31 * 4096 + 32_768) * per_token);
        let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(500) };
        assert_eq!(KvCache::bytes(&config, &slide), 32 * 500 * per_token);
    }

    #[test]
    fn impossible_contexts_are_refused() {
        for context in [0, MAX_CONTEXT + 1, usize::MAX] {
            let options = CacheOptions::new(context);
            let config = preset("llama-demo");
            let error = KvCache::new(&config, &options, &Device::default()).unwrap_err();
            assert!(error.to_string().contains("choose 1 to"), "{error}");
        }
    }

    #[test]
    fn windows_of_another_model_are_refused() {
        let mut config = preset("llama-demo");
        let options = CacheOptions::new(9);
        let cache = KvCache::new(&config, &options, &Device::default()).unwrap();
        let batch = Batch::left_padded(&[[1]]).unwrap();
        let check = |config: &CacheSpec| cache.check(config, &batch);
        check(&config).unwrap();
        match &mut config.layers[2] {
            CacheLayer::Attention(layer) => layer.window = Some(4),
            _ => unreachable!("attention alone"),
        }
        let error = check(&config).unwrap_err().to_string();
        let expected = "for no sliding window in layer 2, but the model needs a sliding window of 4 tokens in layer 2";
        assert!(error.contains(expected), "{error}");
    }
}
