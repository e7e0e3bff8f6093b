//! What can go wrong between text and tokens.

use std::path::PathBuf;

use outsize_checkpoint::ConfigFileError;

/// Why text, tokens or logits could not be processed. Every message names the file or field at
/// fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint has no tokenizer.json.
    #[error(
        "{} has no tokenizer.json, so text cannot be turned into tokens: give token ids instead, or put the \
         model's tokenizer.json there (a tokenizer.model alone is not read)",
        folder.display()
    )]
    NoTokenizer {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// A file could not be read, or is not what it should be.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// tokenizer.json is not a tokenizer that the `tokenizers` library can build.
    #[error("{} is not a tokenizer that can be loaded ({reason}): download it again, or give token ids instead", path.display())]
    BadTokenizer {
        /// The file.
        path: PathBuf,
        /// What the library said.
        reason: String,
    },
    /// A key of a configuration file has a value of the wrong kind.
    #[error("{}: {key} is {found}, expected {expected}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value found, as JSON.
        found: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// tokenizer_config.json asks for a special token that tokenizer.json does not have.
    #[error("{}: {flag} is true, but {key} {token:?} is not in tokenizer.json: correct one of the two files", path.display())]
    UnknownSpecial {
        /// The tokenizer_config.json.
        path: PathBuf,
        /// What asks for the token.
        flag: &'static str,
        /// What names it.
        key: &'static str,
        /// The missing token.
        token: String,
    },
    /// An image cannot be read.
    #[error(transparent)]
    Picture(#[from] outsize_picture::Error),
    /// A model that sees images does not say how.
    #[error(
        "{} has neither a preprocessor_config.json nor a processor_config.json with an image_processor, which say how images \
         are seen: take the file from the model's own repository",
        folder.display()
    )]
    NoImageProcessor {
        /// The checkpoint's folder.
        folder: PathBuf,
    },
    /// An image that is too long for its width, or the other way round.
    #[error(
        "an image of {width} x {height} pixels cannot be seen: one side may be 200 times as long as the other, not more"
    )]
    ImageAspect {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A prompt that has not as many places for images as there are images.
    #[error(
        "the prompt has {places} places for images, and {images} images are given: the chat template may not know of images, or \
         the text itself has the token that stands for one"
    )]
    ImagePlaces {
        /// Places in the prompt.
        places: usize,
        /// Images that are given.
        images: usize,
    },
    /// An image that is too large to be decoded in the memory that is kept for images.
    #[error(
        "{name}: {width} x {height} pixels take more memory to read than is kept for images: scale it down, or open the model for \
         more tokens of images"
    )]
    ImageSize {
        /// The image.
        name: String,
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// Images whose files are too long together.
    #[error(
        "the files of the conversation's images have {bytes} bytes, and may have {most}: give fewer or smaller ones"
    )]
    ImageFiles {
        /// Bytes of all files.
        bytes: u64,
        /// The most that there may be.
        most: u64,
    },
    /// There are no more ids for the tokens of images.
    #[error("there have been too many images: open the model anew")]
    ImageIds,
    /// Images that take more tokens than there is memory for.
    #[error(
        "the images of the conversation take {tokens} tokens, and the model was opened for {most}: give fewer or smaller ones, or \
         open it for more"
    )]
    ImageTokens {
        /// Tokens of all images.
        tokens: usize,
        /// What there is memory for.
        most: usize,
    },
    /// Images for a model that sees none, or was opened for none.
    #[error("images cannot be seen here: {reason}")]
    NoImages {
        /// Why.
        reason: &'static str,
    },
    /// A chat template cannot be used, or refuses the messages.
    #[error("{}{line}: {reason}: correct the messages, or take another chat template", path.display())]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// Where in the template, if that is known: ", line 3".
        line: String,
        /// What is wrong.
        reason: String,
    },
    /// Functions were offered to a model whose chat template does not tell it of them.
    #[error(
        "{} has no place for tools, so the model would not know of them: leave them out, or take another chat template",
        path.display()
    )]
    NoTools {
        /// The template's file.
        path: PathBuf,
    },
    /// The model has no chat template of that name.
    #[error(
        "{} has no chat template{}: the model may be made to go on with a text rather than to answer; give it a text to \
         go on with, or a chat template's file",
        folder.display(), named(name, known)
    )]
    NoChatTemplate {
        /// The model's folder.
        folder: PathBuf,
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// generation_config.json asks for something that would change the text and is not built in.
    #[error(
        "{}: {key} is {found}, which changes the text and is not supported: set other values and read no \
         such file, or a copy of it without {key}",
        path.display()
    )]
    UnsupportedKey {
        /// The generation_config.json.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        found: String,
    },
    /// The prompt is already as long as generation_config.json allows a text to be.
    #[error(
        "the prompt takes {prompt} tokens and {} allows a text of {max_length} (max_length): set max_new_tokens",
        path.display()
    )]
    MaxLength {
        /// The generation_config.json.
        path: PathBuf,
        /// The prompt's length, in tokens.
        prompt: usize,
        /// What is allowed, in tokens.
        max_length: usize,
    },
    /// A stop string cannot serve as one.
    #[error(
        "the stop strings cannot be used ({reason}): correct those of the request or of generation_config.json (stop_strings)"
    )]
    StopString {
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer gives a token that the model does not have.
    #[error(
        "the tokenizer gives token {id} ({token:?}), but the model has only {vocab_size} (vocab_size in config.json): \
         tokenizer.json and the model do not belong together"
    )]
    OutOfVocabulary {
        /// The token's id.
        id: u32,
        /// Its spelling.
        token: String,
        /// How many tokens the model has.
        vocab_size: usize,
    },
    /// The tokenizer refused a text.
    #[error("the tokenizer cannot encode this text: {reason}")]
    Encode {
        /// What the library said.
        reason: String,
    },
    /// The tokenizer refused token ids.
    #[error("the tokenizer cannot decode these tokens: {reason}")]
    Decode {
        /// What the library said.
        reason: String,
    },
    /// No byte-level tokenizer has so few or so many tokens.
    #[error(
        "a byte-level tokenizer needs a vocabulary of {least} to {most} tokens, not {vocab_size}: change vocab_size in the configuration"
    )]
    VocabularySize {
        /// The size asked for, in tokens.
        vocab_size: usize,
        /// The smallest size, in tokens.
        least: usize,
        /// The largest size, in tokens.
        most: usize,
    },
    /// A value of [`Sampling`](crate::Sampling) is out of range.
    #[error("{field} is {value}, expected {expected}")]
    SamplingValue {
        /// The field.
        field: &'static str,
        /// The value given.
        value: f32,
        /// What it should have been.
        expected: &'static str,
    },
    /// A value of [`BeamSearch`](crate::BeamSearch) is out of range.
    #[error("{field} is {value}, expected {expected}")]
    BeamValue {
        /// The field.
        field: &'static str,
        /// The value given.
        value: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// Beam search was asked for together with sampling.
    #[error(
        "beam search takes the likeliest sequences and does not sample: set the temperature to 0 (do_sample to \
         false) and leave out the penalties of frequency and presence, or set num_beams to 1"
    )]
    BeamSampling,
    /// Beam search was asked for where there is none.
    #[error("num_beams is {num_beams}, but {reason}; or set num_beams to 1")]
    NoBeams {
        /// How many beams.
        num_beams: usize,
        /// Why there is no search, and what to do.
        reason: &'static str,
    },
    /// More beams than the pipeline was built for.
    #[error(
        "num_beams is {num_beams}, but the pipeline was built for {sequences} sequences: build it for as many beams"
    )]
    Beams {
        /// How many beams.
        num_beams: usize,
        /// Sequences that there is room for.
        sequences: usize,
    },
    /// generation_config.json begins an answer otherwise than config.json.
    #[error("{}: decoder_start_token_id is {found}, but {start} in config.json: make them equal", path.display())]
    DecoderStart {
        /// The generation_config.json.
        path: PathBuf,
        /// What it says.
        found: usize,
        /// What config.json says.
        start: u32,
    },
    /// The model's logits cannot be chosen from.
    #[error("no token can be chosen: {reason}")]
    BadLogits {
        /// What is wrong with them.
        reason: String,
    },
    /// A call was asked for that there cannot be.
    #[error("the choice of tools cannot be obeyed: {reason}")]
    ToolChoice {
        /// What is wrong with it.
        reason: String,
    },
    /// A text cannot be constrained as it is asked for.
    #[error("the JSON schema cannot be obeyed: {reason}")]
    Constraint {
        /// What is wrong with it.
        reason: String,
    },
    /// A file of sentence-transformers is not what it should be, or asks for what is not built in.
    #[error("{}: {reason}", path.display())]
    EmbeddingFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The model has no prompt of that name.
    #[error("there is no prompt {name:?}: this model has {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    EmbeddingPrompt {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The context has no room for a text.
    #[error(
        "a text may have {most} tokens, of which {special} are special ones around it: allow more (context)"
    )]
    EmbeddingRoom {
        /// Tokens that there is room for.
        most: usize,
        /// Tokens around the text.
        special: usize,
    },
    /// More dimensions were asked for than a vector has.
    #[error("{wanted} dimensions are asked for, expected 1 to {most}")]
    EmbeddingDimensions {
        /// How many.
        wanted: usize,
        /// How many there are.
        most: usize,
    },
    /// Embeddings were asked of a model with an encoder.
    #[error("an encoder reads the prompts of this model: embeddings are those of decoders")]
    EmbeddingEncoder,
    /// An encoder reads the prompt.
    #[error(
        "the tokens of a prompt are not predicted: an encoder reads it, and the answer alone is"
    )]
    ReadPrompt,
    /// There is no token to start from.
    #[error("the prompt has no tokens: give some text or ids")]
    EmptyPrompt,
    /// The prompt leaves no room for a new token.
    #[error(
        "the prompt takes {needed} tokens and the context holds {context}, which leaves no room for a new one: {advice}"
    )]
    PromptTooLong {
        /// The prompt's length plus what the model already holds, in tokens.
        needed: usize,
        /// What the context holds, in tokens.
        context: usize,
        /// What can be done about it.
        advice: String,
    },
}

/// Which chat template is missed, if there are others.
fn named(name: &str, known: &[String]) -> String {
    match known {
        [] => String::new(),
        known => format!(" {name:?} (there is {})", known.join(", ")),
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
