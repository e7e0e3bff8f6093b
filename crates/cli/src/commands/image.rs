//! `outsize image`: a prompt in, pictures out, under a budget; and what `outsize plan` and
//! `estimate` say of such a model.

use crate::args::{EstimateArgs, ImageArgs, PlanArgs, workload};
use crate::error::Failure;
use crate::views::image::{ImageOutput, PartOutput, PartsOutput, PictureOutput, PredictionOutput};
use crate::views::output::{self, print, print_json, say_wrapped};
use crate::views::progress;
use crate::{cache, interrupt, model};
use indicatif::ProgressBar;
use outsize::core::Planning;
use outsize::diffuse::{
    ImageModel, ImagePipeline, ImageProgress, ImageRequest, ImageSettings, PartPlan, SingleFile,
    preview,
};
use outsize::generate::default_budget;
use outsize::machine::Machine;
use outsize::models::ActivationDtype;
use outsize::plan::{Budget, HardwareProfile, Tier};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Runs the command; `began` is when the process did.
pub fn image(args: &ImageArgs, began: Instant) -> Result<(), Failure> {
    let variant = args.variant.as_deref();
    let place = model::picture_model(&args.model, variant)?;
    let file = match (place.is_file(), &args.base) {
        (true, base) => {
            let file = SingleFile::open(&place)?;
            let base = model::base_of(&file, base.as_deref())?;
            Some((file, base))
        }
        (false, Some(_)) => return Err(model::base_alone()),
        (false, None) => None,
    };
    refuse_other_format(&args.output)?;
    output::refuse_missing_folder(&args.output)?;
    let outputs = outputs(&args.output, &args.picture.seeds());
    let preview = args.preview.map(|_| beside(&args.output, ".preview"));
    for path in outputs.iter().chain(&preview) {
        output::refuse_to_replace(path, args.force)?;
    }
    let machine = Machine::detect();
    let (figures, provenance) = cache::figures(&machine, &place);
    let settings = settings(args.max_memory.as_ref(), args.compute, &machine, figures)?;
    model::check_gpus(&settings.max_memory)?;
    let mut pipeline = match &file {
        Some((file, base)) => ImagePipeline::open_file(file, base, settings)?,
        None => ImagePipeline::open(&place, variant, settings)?,
    };
    let adapters = adapters(args)?;
    for (path, scale) in &adapters {
        pipeline.adapt(path, *scale)?;
    }
    let model = pipeline.model();
    // What pictures take is counted beside what the process does.
    let request = args.picture.request(model.kind())?;
    let [width, height] = model.size(&request)?;
    let (scheduler, overridden) = model.scheduler(&request)?;
    let (steps, guidance_scale) = (model.steps(&request), model.guidance_scale(&request));
    let mut notes = model.notes();
    if !overridden.is_empty() {
        notes.push(format!(
            "scheduler_config.json is outdated: {} {} as diffusers sets it",
            overridden.join(" and "),
            if overridden.len() == 1 { "is" } else { "are" },
        ));
    }
    if args.picture.guidance_scale.is_some() && !model.takes_guidance() {
        notes.push("--guidance-scale has no effect: this model needs no guidance".to_owned());
    }
    if args.picture.guidance_scale.is_some()
        && model.kind().needs_negative_prompt()
        && request.negative_prompt.is_empty()
    {
        let note = "--guidance-scale has no effect without --negative-prompt, which may be \" \"";
        notes.push(note.to_owned());
    }
    notes.iter().for_each(|note| say_wrapped(&format!("note: {note}")));
    if args.preview.is_some() && !model.has_preview() {
        return Err(Failure::usage(
            "--preview: not for this model, whose latents are not those of Stable Diffusion: leave it out"
                .to_owned(),
        ));
    }
    let mut watch = Watch::new(args, preview.map(Preview), provenance.note);
    let pictures = pipeline.generate_watched(&request, |progress| watch.see(&progress))?;
    watch.finish()?;
    interrupt::check()?;
    let mut written = Vec::with_capacity(pictures.len());
    for ((picture, path), seed) in pictures.iter().zip(outputs).zip(&request.seeds) {
        let mut texts = vec![
            ("prompt", request.prompt.clone()),
            ("negative_prompt", request.negative_prompt.clone()),
            ("steps", steps.to_string()),
            ("scheduler", scheduler.kind.class_name().to_owned()),
            ("guidance_scale", guidance_scale.to_string()),
            ("seed", seed.to_string()),
            ("size", format!("{width}x{height}")),
            ("model", name(&args.model)),
            ("software", concat!("outsize ", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        let file =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !adapters.is_empty() {
            let names = adapters.iter().map(|(path, scale)| format!("{} {scale}", file(path)));
            texts.push(("adapters", names.collect::<Vec<_>>().join(", ")));
        }
        if !args.picture.image.is_empty() {
            let names = args.picture.image.iter().map(|image| file(image));
            texts.push(("image", names.collect::<Vec<_>>().join(", ")));
        }
        if request.image.is_some() {
            texts.extend(args.picture.mask.iter().map(|mask| ("mask", file(mask))));
            texts.push(("strength", model.strength(&request).to_string()));
        }
        picture.write_png(&path, &texts)?;
        written.push(PictureOutput { path, seed: *seed });
    }
    let report = ImageOutput {
        pictures: written,
        width,
        height,
        steps,
        scheduler: scheduler.kind.class_name(),
        guidance_scale,
        seconds_per_step: watch.seconds_per_step(),
        seconds: began.elapsed().as_secs_f64(),
        parts: watch.parts,
        predicted: watch.predicted,
        peak_rss_bytes: outsize::machine::peak_rss(),
        cut: watch.cut,
        notes,
    };
    match args.json {
        true => print_json(&report),
        false => {
            report.summary().lines().for_each(say_wrapped);
            Ok(())
        }
    }
}

/// The files of the adapters that are asked for, and how much of each.
fn adapters(args: &ImageArgs) -> Result<Vec<(PathBuf, f64)>, Failure> {
    let ImageArgs { adapter: paths, adapter_scale: scales, .. } = args;
    if !scales.is_empty() && scales.len() != paths.len() {
        return Err(Failure::usage(format!(
            "--adapter-scale: there are {} for {} adapters: give one for each, or none",
            scales.len(),
            paths.len()
        )));
    }
    let scales = scales.iter().copied().chain(std::iter::repeat(1.0));
    paths
        .iter()
        .zip(scales)
        .map(|(path, scale)| Ok((model::picture_adapter(path)?, scale)))
        .collect()
}

/// What a pipeline is run with under a budget, on a machine whose speed is known.
fn settings(
    budget: Option<&Budget>,
    compute: ActivationDtype,
    machine: &Machine,
    figures: HardwareProfile,
) -> Result<ImageSettings, Failure> {
    let held = outsize::machine::current_rss().unwrap_or(0);
    let budget = budget.cloned().unwrap_or_else(|| default_budget(machine, held));
    model::warn_of_excess(budget.get(Tier::Cpu), machine);
    let planning = Planning { figures, ..Planning::default() };
    let stop = Some(interrupt::flag());
    Ok(ImageSettings { compute, stop, planning, ..ImageSettings::new(budget) })
}

/// What each part of a model holds while it is its turn, and how long pictures take: of
/// `outsize plan`.
pub fn plan(
    args: &PlanArgs,
    path: &Path,
    mut model: ImageModel,
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    if let Some(adapter) = &args.adapter {
        model.adapt(&model::picture_adapter(adapter)?, 1.0)?;
    }
    let refused = [
        ("--svg", args.svg.is_some()),
        ("--device-map", args.places.device_map.is_some()),
        ("--dtype", args.dtypes.dtype.is_some()),
        ("--special-dtype", !args.dtypes.special_dtype.is_empty()),
        ("--context", args.workload.context.is_some()),
        ("--prompt-tokens", args.workload.prompt_tokens.is_some()),
    ];
    if let Some((flag, _)) = refused.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{flag}: not for models of several parts: leave it out"
        )));
    }
    let machine = Machine::detect();
    let given = args.workload.figures.as_deref();
    let (figures, source) = cache::figures_of(given, path, &machine)?;
    let compute = args.workload.dtypes.compute;
    let mut settings = settings(args.max_memory.as_ref(), compute, &machine, figures)?;
    settings.planning.strategy = args.places.strategy;
    settings.planning.reserve_bytes = args.places.reserve;
    settings.planning.must_fit = args.places.must_fit;
    let request = model.usual_request();
    let plans = model.plan(&settings, &request)?;
    let placement = (&plans[..], &plans[..], source);
    notes.extend(workload::gpu_notes(&settings.max_memory, &settings.planning.figures));
    show(path, &model, (&settings, &request), placement, notes, args.json)
}

/// What each part of a model needs, and how long pictures take if all of it is in memory: of
/// `outsize estimate`.
pub fn estimate(
    args: &EstimateArgs,
    path: &Path,
    model: &ImageModel,
    notes: Vec<String>,
) -> Result<(), Failure> {
    let request = model.usual_request();
    let (figures, provenance) = cache::figures(&Machine::detect(), path);
    let mut unbounded = Budget::default();
    unbounded.set(Tier::Cpu, u64::MAX / 2);
    let planning = Planning { figures, ..Planning::default() };
    let compute = args.run_dtypes.compute;
    let settings = ImageSettings { compute, planning, ..ImageSettings::new(unbounded) };
    let plans = model.plan(&settings, &request)?;
    let placement = (&plans[..], &plans[..0], provenance.note);
    show(path, model, (&settings, &request), placement, notes, args.json)
}

/// Shows what the parts take, the plans that are to be shown, and the speed of all plans by figures
/// that come from `source`.
fn show(
    path: &Path,
    model: &ImageModel,
    (settings, request): (&ImageSettings, &ImageRequest),
    (plans, shown, source): (&[PartPlan], &[PartPlan], String),
    mut notes: Vec<String>,
    json: bool,
) -> Result<(), Failure> {
    let estimates = model.estimate(settings, request)?;
    let prediction = model.predict(plans, request).inspect_err(|error| {
        notes.push(format!(
            "the model's own scheduler is not run, so no speed is predicted: {error}"
        ));
    });
    let prediction =
        prediction.ok().map(|known| PredictionOutput { prediction: known, figures_source: source });
    let size = (model.size(request)?, model.looks_at_negative_prompts(request));
    let report = PartsOutput::new(path, size, (shown, prediction), estimates, notes);
    if json {
        return print_json(&report);
    }
    print(&report.text(console::Term::stdout().size_checked().map(|(_, width)| width.into())))
}

/// Where each picture goes.
fn outputs(path: &Path, seeds: &[u64]) -> Vec<PathBuf> {
    match seeds {
        [_] => vec![path.to_owned()],
        seeds => seeds.iter().map(|seed| beside(path, &format!("-{seed}"))).collect(),
    }
}

/// Refuses a name that promises another format than is written.
fn refuse_other_format(path: &Path) -> Result<(), Failure> {
    match path.extension().filter(|end| !end.eq_ignore_ascii_case("png")) {
        Some(_) => Err(Failure::usage(format!(
            "--output: pictures are written as PNG: {} is no name for one, {} is",
            path.display(),
            path.with_extension("png").display()
        ))),
        None => Ok(()),
    }
}

/// The path with something added to the file's name, before its extension.
fn beside(path: &Path, addition: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(addition);
    name.push(".");
    name.push(path.extension().unwrap_or("png".as_ref()));
    path.with_file_name(name)
}

/// The model's name, without the place where it lies.
fn name(model: &Path) -> String {
    match model.is_dir() {
        true => {
            let path = model.canonicalize().unwrap_or_else(|_| model.to_owned());
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
        false => model.to_string_lossy().into_owned(),
    }
}

/// Follows a run: progress for a terminal, previews, and what the report says.
struct Watch<'a> {
    args: &'a ImageArgs,
    bar: Option<ProgressBar>,
    preview: Option<Preview>,
    failure: Option<Failure>,
    began: Instant,
    /// When the first and the last step were done, and the steps between.
    steps: Option<(Instant, Instant, usize)>,
    parts: Vec<PartOutput>,
    /// Where the figures for predictions come from, and what was predicted.
    figures: String,
    predicted: Option<PredictionOutput>,
    cut: Vec<String>,
}

impl<'a> Watch<'a> {
    fn new(args: &'a ImageArgs, preview: Option<Preview>, figures: String) -> Self {
        Self {
            args,
            bar: None,
            preview,
            failure: None,
            began: Instant::now(),
            steps: None,
            parts: Vec::new(),
            figures,
            predicted: None,
            cut: Vec::new(),
        }
    }

    fn see(&mut self, progress: &ImageProgress<'_>) {
        match progress {
            ImageProgress::Planned { prediction, .. } => {
                let predicted = PredictionOutput {
                    prediction: **prediction,
                    figures_source: self.figures.clone(),
                };
                if !self.args.json {
                    say_wrapped(&format!("predicted: {}", predicted.text()));
                }
                self.predicted = Some(predicted);
            }
            ImageProgress::Cut { text } => {
                say_wrapped(&format!(
                    "note: the prompt is longer than the model reads; this is not heard: {text}"
                ));
                self.cut.push((*text).to_owned());
            }
            ImageProgress::Began { part, map } => {
                self.began = Instant::now();
                self.parts.push(PartOutput::new(*part, map));
                let bar = match part {
                    part if part.is_denoiser() => progress::steps(0),
                    part => {
                        let bar = progress::activity();
                        bar.set_message(part.name());
                        bar
                    }
                };
                self.replace_bar(Some(bar));
            }
            ImageProgress::Step { picture, done, steps, size, latents } => {
                if let Some(bar) = &self.bar {
                    bar.set_length((steps * self.args.picture.count as usize) as u64);
                    bar.set_position((picture * steps + done) as u64);
                }
                let now = Instant::now();
                let (first, _, count) = self.steps.unwrap_or((now, now, 0));
                self.steps = Some((first, now, count + 1));
                if self.args.preview.is_some_and(|every| done.is_multiple_of(every) && done < steps)
                {
                    self.write_preview(latents, *size);
                }
            }
            ImageProgress::Ended { stats, .. } => {
                if let Some(part) = self.parts.last_mut() {
                    part.ended(self.began.elapsed(), stats);
                }
                self.replace_bar(None);
            }
        }
    }

    fn replace_bar(&mut self, bar: Option<ProgressBar>) {
        if let Some(bar) = std::mem::replace(&mut self.bar, bar) {
            bar.finish_and_clear();
        }
    }

    fn write_preview(&mut self, latents: &[f32], [rows, columns]: [usize; 2]) {
        let (Some(Preview(path)), None) = (&self.preview, &self.failure) else {
            return;
        };
        let written =
            preview(latents, rows, columns).map_or(Ok(()), |picture| picture.write_png(path, &[]));
        self.failure = written.err().map(Failure::from);
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.replace_bar(None);
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Between the first step's end and the last one's.
    fn seconds_per_step(&self) -> Option<f64> {
        let (first, last, count) = self.steps.filter(|(.., count)| *count > 1)?;
        Some(last.duration_since(first).as_secs_f64() / (count - 1) as f64)
    }
}

/// Where previews are written. The last one is removed at the end, also of a run that is
/// interrupted.
struct Preview(PathBuf);

impl Drop for Preview {
    fn drop(&mut self) {
        // There may be none yet.
        let _ = std::fs::remove_file(&self.0);
    }
}
