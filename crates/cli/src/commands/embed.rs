//! `outsize embed`: texts in, vectors out, under a budget.

use crate::args::EmbedArgs;
use crate::embedding::OpenedEmbedding;
use crate::error::Failure;
use crate::interrupt;
use crate::prompts::{LinesOf, PromptLine, PromptLines, PromptResult, ResultLine, ResultsFile};
use crate::views::embed::{EmbedOutput, EmbedRun, ranking, similarities};
use crate::views::output::{
    is_same_file, picture, print, print_json, refuse_to_overwrite, say, say_wrapped,
};
use crate::views::progress;
use outsize::generate::{
    EmbedOptions, EmbeddingPipeline, EmbeddingText, EmbeddingTokenizer, Error as TextError,
};
use std::cmp::Reverse;
use std::path::Path;

/// Groups of texts, each as many as run side by side, that are sorted by their length.
const GROUPS: usize = 16;

/// Runs the command.
pub fn embed(args: &EmbedArgs) -> Result<(), Failure> {
    let opened = OpenedEmbedding::new(&args.model, args.pooling, usize::MAX)?;
    let prompt = match &args.query {
        Some(_) => opened.named("document").to_owned(),
        None => {
            let (prompt, prompt_name) = (args.prompt.as_deref(), args.prompt_name.as_deref());
            let options = EmbedOptions { prompt, prompt_name, dimensions: None };
            opened.tokenizer.prompt(&options)?.to_owned()
        }
    };
    match (&args.texts, &args.output) {
        (Some(texts), Some(output)) => embed_file(opened, args, &prompt, texts, output),
        _ => embed_few(opened, args, &prompt),
    }
}

/// The model, placed for so many texts of up to `longest` tokens.
fn placed(
    opened: OpenedEmbedding,
    args: &EmbedArgs,
    [texts, longest]: [usize; 2],
) -> Result<EmbeddingPipeline, Failure> {
    let pipe = opened.dispatch([args.batch.min(texts), longest])?;
    if !args.json {
        say(picture(pipe.pipeline().device_map()));
    }
    Ok(pipe)
}

/// Embeds texts of the command line, and shows how similar they are.
fn embed_few(opened: OpenedEmbedding, args: &EmbedArgs, prompt: &str) -> Result<(), Failure> {
    let texts = args.text.iter().map(|text| (prompt, text));
    let texts = texts.chain(args.query.iter().map(|query| (opened.named("query"), query)));
    let tokens = texts.map(|(prompt, text)| opened.tokenizer.tokens(prompt, text));
    let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
    let longest = tokens.iter().map(|text| text.ids.len()).max().unwrap_or(1);
    let mut pipe = placed(opened, args, [tokens.len(), longest])?;
    let mut run = EmbedRun::begin();
    let mut vectors = pipe.embed_tokens(&tokens, args.dimensions)?;
    run.add(&vectors);
    let query = args.query.as_ref().and_then(|_| vectors.pop());
    let output = run.end(pipe.pipeline());
    if args.json {
        return print_json(&EmbedOutput {
            query: query.map(|vector| vector.values),
            embeddings: Some(vectors.into_iter().map(|vector| vector.values).collect()),
            ..output
        });
    }
    print(&match &query {
        Some(query) => ranking(query, &vectors, &args.text),
        None => similarities(&vectors, &args.text),
    })?;
    say_wrapped(&output.summary());
    Ok(())
}

/// Embeds the texts of a file.
fn embed_file(
    opened: OpenedEmbedding,
    args: &EmbedArgs,
    prompt: &str,
    texts: &Path,
    output: &Path,
) -> Result<(), Failure> {
    refuse_to_overwrite(&args.model.model, output)?;
    if is_same_file(texts, output) {
        return Err(Failure::usage("--output: it is the file of the texts"));
    }
    let mut results = ResultsFile::open(output)?;
    let (mut done, mut longest) = (Vec::new(), 1);
    // Once before any work is done: a broken line is found, and how long texts are.
    for line in PromptLines::open(LinesOf::Texts, texts)? {
        let (index, line) = line?;
        interrupt::check()?;
        if results.has(index) {
            results.check(index, &line)?;
        } else {
            let place = || format!("{}, text {index}", texts.display());
            let tokens = tokens_of(&opened.tokenizer, prompt, &line);
            let tokens = tokens.map_err(|error| Failure::from(error).at(place()))?;
            longest = longest.max(tokens.ids.len());
        }
        done.push(results.has(index));
    }
    let left = done.iter().filter(|done| !**done).count();
    match (done.len(), left) {
        (0, _) => return Err(Failure::usage(format!("{} has no texts", texts.display()))),
        (all, 0) => {
            say(format!("{} has the vectors of all {all} texts", output.display()));
            return Ok(());
        }
        _ => {}
    }
    let mut pipe = placed(opened, args, [left, longest])?;
    let batch = pipe.pipeline().cache_options().batch;
    let lines = PromptLines::open(LinesOf::Texts, texts)?;
    let mut lines = lines.filter(|line| match line {
        Ok((index, _)) => done.get(*index) == Some(&false),
        Err(_) => true,
    });
    let bar = progress::count(left as u64, "texts");
    bar.tick();
    let mut run = EmbedRun::begin();
    loop {
        let mut group = Vec::new();
        for line in lines.by_ref().take(GROUPS * batch) {
            let (index, line) = line?;
            group.push((index, tokens_of(pipe.tokenizer(), prompt, &line)?, line.id));
        }
        if group.is_empty() {
            break;
        }
        // Texts of about the same length have little padding.
        group.sort_by_key(|(_, text, _)| Reverse(text.ids.len()));
        for beside in group.chunks(batch) {
            let texts: Vec<_> = beside.iter().map(|(_, text, _)| text.clone()).collect();
            let vectors = pipe.embed_tokens(&texts, args.dimensions)?;
            for ((index, _, id), vector) in beside.iter().zip(&vectors) {
                let result = PromptResult::embedding(vector);
                results.append(&ResultLine { index: *index, id: id.as_ref(), result })?;
            }
            run.add(&vectors);
            bar.inc(beside.len() as u64);
        }
    }
    bar.finish_and_clear();
    let output = run.end(pipe.pipeline());
    match args.json {
        true => print_json(&output)?,
        false => say_wrapped(&output.summary()),
    }
    Ok(())
}

/// The tokens of a line; those that are given get no prompt.
fn tokens_of(
    tokenizer: &EmbeddingTokenizer,
    prompt: &str,
    line: &PromptLine,
) -> Result<EmbeddingText, TextError> {
    match &line.ids {
        Some(ids) => tokenizer.ids(ids),
        None => tokenizer.tokens(prompt, line.text.as_deref().unwrap_or_default()),
    }
}
