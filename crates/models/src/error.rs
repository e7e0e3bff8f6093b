//! What can go wrong between a `config.json` and its logits.

/// What can go wrong between a `config.json` and its logits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is not a JSON object.
    #[error(
        "config.json is not valid: {message}; it must be the JSON object that comes with a Hugging Face model"
    )]
    Json {
        /// What the parser said, with line and column.
        message: String,
    },
    /// A field without a default is absent.
    #[error(
        "config.json: the field `{field}` is missing; take the file from the model's own repository"
    )]
    MissingField {
        /// The field, with its parents: `rope_parameters.factor`.
        field: String,
    },
    /// `model_type` names an architecture that is not built in.
    #[error("config.json: the model type `{found}` is not supported; supported: {supported}")]
    ModelType {
        /// The value of `model_type`.
        found: String,
        /// The supported values, comma-separated; of many those that are called alike.
        supported: String,
    },
    /// A field holds something that this software cannot run.
    #[error("config.json: `{field}` is {value}, but {expected}")]
    Field {
        /// The field, with its parents: `rope_parameters.factor`.
        field: String,
        /// Its value as JSON, cut when long.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// No built-in configuration has this name.
    #[error("there is no built-in configuration `{name}`; there are: {known}")]
    Preset {
        /// The name asked for.
        name: String,
        /// The known names, comma-separated.
        known: String,
    },
    /// The context length asked for is zero or beyond what positions can express.
    #[error("a context of {context} tokens is not possible; choose 1 to {max}")]
    Context {
        /// Tokens asked for.
        context: usize,
        /// The greatest context that is possible.
        max: usize,
    },
    /// The batch asked for is zero or beyond what any machine could run.
    #[error("a batch of {batch} texts is not possible; choose 1 to {max}")]
    Batch {
        /// Texts asked for.
        batch: usize,
        /// The greatest batch that is possible.
        max: usize,
    },
    /// The table of a model with experts that tokens go to whatever their scores has none for a
    /// token.
    #[error(
        "the table `tid2eid` does not name different ones of {experts} experts for token {token}: the checkpoint is damaged, or of another model"
    )]
    ExpertTable {
        /// The token.
        token: u32,
        /// Experts that there are.
        experts: usize,
    },
    /// A forward pass would go past the end of the KV cache.
    #[error(
        "the context is full: {tokens} new tokens at position {position} need room for {}, but the KV cache holds \
         {capacity}; use a longer context or fewer tokens",
        position.saturating_add(*tokens)
    )]
    ContextFull {
        /// Tokens already in the cache.
        position: usize,
        /// Tokens of this pass.
        tokens: usize,
        /// Tokens the cache was made for.
        capacity: usize,
    },
    /// A sequence without end was asked for, of a model that cannot have one.
    #[error(
        "a text that slides on beyond its context is not possible with this model: {reason}; use a longer context"
    )]
    CannotSlide {
        /// What of the model forbids it.
        reason: &'static str,
    },
    /// Tokens that would be in sight have been overwritten by later ones.
    #[error(
        "the KV cache cannot go on from position {position}: its sliding window would see tokens from position {needed} on, \
         but those before {oldest} have been overwritten; clear it (`truncate(0)`) and run the text again"
    )]
    Forgotten {
        /// Where the text was to go on.
        position: usize,
        /// The first token that would be in sight.
        needed: usize,
        /// The first token that is still there.
        oldest: usize,
    },
    /// A text was to go on from before its last token, of a model that keeps no tokens apart.
    #[error(
        "the KV cache cannot go on from position {position}: linear attention has all {written} tokens in one state, and \
         cannot forget the last ones; clear it (`truncate(0)`) and run the text again"
    )]
    CannotGoBack {
        /// Where the text was to go on.
        position: usize,
        /// Tokens that the state has, or may have.
        written: usize,
    },
    /// A batch of another size than the cache is for.
    #[error("{rows} texts cannot run in a KV cache that was made for {batch}; give as many")]
    BatchRows {
        /// Texts of the batch.
        rows: usize,
        /// Texts that the cache was made for.
        batch: usize,
    },
    /// A text was to be copied that is not there.
    #[error("there is no text {row} in a KV cache that holds {rows}, counted from 0")]
    Row {
        /// Which text.
        row: usize,
        /// Texts held.
        rows: usize,
    },
    /// Padding came after a token.
    #[error(
        "text {row} of the batch has padding, but it already has tokens before position {position}; \
         padding may only come before a text's first token"
    )]
    Padding {
        /// Which text, counted from 0.
        row: usize,
        /// Tokens that the cache holds.
        position: usize,
    },
    /// An encoder was asked for, of a model that has none.
    #[error("this model has no encoder: its decoder reads the prompt")]
    NoEncoder,
    /// A decoder was run before its encoder.
    #[error("the KV cache holds no prompt: the encoder has to read one before the decoder runs")]
    NoPrompt,
    /// A prompt does not fit what the cache was made for.
    #[error(
        "a prompt of {tokens} tokens is not possible in a KV cache that was made for prompts of {capacity}"
    )]
    Prompt {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the cache was made for.
        capacity: usize,
    },
    /// A forward pass without tokens.
    #[error("there are no tokens to run; give at least one token id")]
    NoTokens,
    /// A token id that the model has no embedding for.
    #[error(
        "the token id {id} at index {index} is outside the vocabulary of {vocab_size}; \
         the tokenizer may belong to another model"
    )]
    TokenId {
        /// The id.
        id: u32,
        /// Its place among the ids given.
        index: usize,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
    /// Several texts were to run of which one has an image.
    #[error("a text with images runs alone, not beside others: {rows} were given")]
    ImageBatch {
        /// Texts of the batch.
        rows: usize,
    },
    /// A part of an image was to run whose tokens see each other.
    #[error(
        "the image of the id {id} is cut: its tokens see each other, and one pass has to run them all"
    )]
    ImageCut {
        /// The id.
        id: u32,
    },
    /// A token of an image that is not there, or no longer.
    #[error("the id {id} cannot stand for a token of an image: no image has it, or another one")]
    ImageToken {
        /// The id.
        id: u32,
    },
    /// The KV cache was made for a different model.
    #[error(
        "the KV cache is for {found}, but the model needs {needed}; create the cache from the model's configuration"
    )]
    CacheShape {
        /// Layers and heads of the cache.
        found: String,
        /// Layers and heads of the model.
        needed: String,
    },
    /// An earlier pass stopped while writing to the KV cache, and what it held is lost.
    #[error(
        "the KV cache of layer {layer} was lost when an earlier pass failed; create a new cache"
    )]
    CacheLost {
        /// The layer, counted from 0.
        layer: usize,
    },
    /// Gradients were asked for of a model whose blocks depend on each other by more than the
    /// residual stream.
    #[error(
        "this model cannot learn block by block: its layers share keys and values, or see tokens that an indexer chooses, or it has an encoder"
    )]
    NoBlocks,
    /// A weight was to learn that is in no block.
    #[error("`{path}` cannot learn: it is in none of the model's blocks")]
    OutsideBlocks {
        /// The weight's path.
        path: String,
    },
    /// A module was to learn an adapter that is not dispatched.
    #[error("an adapter of a model that is not dispatched cannot learn")]
    NotDispatched,
    /// A device cannot hold the cache's type.
    #[error(
        "the GPU's backend does not compute in {dtype}, so that no KV cache of this type can be there: keep keys and values in \
         f32, or in the other 16-bit type if `outsize env` says that it computes in that"
    )]
    CacheDtype {
        /// The cache's type.
        dtype: crate::KvDtype,
    },
    /// A tensor of a checkpoint cannot become what was asked for.
    #[error(transparent)]
    Core(Box<outsize_core::Error>),
}
