//! Reading a tokenizer.json without holding it as untyped values.

use serde::Deserialize;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{
    DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Result,
    Tokenizer, TokenizerImpl,
};

/// What of a file tells of which type its model is.
#[derive(Deserialize)]
struct TypedFile {
    model: TypedModel,
}

#[derive(Deserialize)]
struct TypedModel {
    r#type: ModelType,
}

/// The types of models that the library has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum ModelType {
    #[serde(rename = "BPE")]
    Bpe,
    WordPiece,
    WordLevel,
    Unigram,
}

/// The type that the model of a tokenizer.json names; older files do not name it.
pub(crate) fn model_type(text: &[u8]) -> Option<ModelType> {
    serde_json::from_slice(text).ok().map(|file: TypedFile| file.model.r#type)
}

/// The tokenizer that a tokenizer.json describes.
///
/// The library reads a model of a type that it is told at once. Where it has to find the type out,
/// it holds the model as untyped values first, which takes several times the memory.
pub(crate) fn parse(text: &[u8]) -> Result<Tokenizer> {
    match model_type(text) {
        Some(ModelType::Bpe) => of_type::<BPE>(text),
        Some(ModelType::WordPiece) => of_type::<WordPiece>(text),
        Some(ModelType::WordLevel) => of_type::<WordLevel>(text),
        Some(ModelType::Unigram) => of_type::<Unigram>(text),
        None => Tokenizer::from_bytes(text),
    }
}

/// The same with a model of that type.
fn of_type<'a, M: Model + Deserialize<'a> + Into<ModelWrapper>>(
    text: &'a [u8],
) -> Result<Tokenizer> {
    type Typed<M> = TokenizerImpl<
        M,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >;
    let tokenizer: Typed<M> = serde_json::from_slice(text)?;
    Ok(tokenizer.into())
}
