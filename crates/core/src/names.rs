//! What a parameter is called in the checkpoint, and how it is stored there.

use crate::torch::{self, NormOrder};
use crate::{Error, Location, Parameter};
use regex::{Regex, RegexBuilder};
use std::ops::Range;

/// Whose conventions a checkpoint follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// As the module declares it: same names, same shapes. So are Burn's own records: the burnpack
    /// files (`.bpk`) of [`save_file`](burn::module::Module::save_file), and the safetensors of
    /// burn-store.
    #[default]
    Burn,
    /// PyTorch's.
    ///
    /// | Burn | PyTorch |
    /// |---|---|
    /// | weight of `Linear` `[in, out]` | stored `[out, in]` |
    /// | `gamma`, `beta` of a norm; `alpha` of `PRelu` | `weight`, `bias`; `weight` |
    /// | `BatchNorm` | its `num_batches_tracked` is left alone |
    /// | `Embedding`, convolutions and transposed ones | the same |
    /// | `MultiHeadAttention`: `query`, `key`, `value`; `output` | parts of `in_proj_weight` and `in_proj_bias`; `out_proj` |
    /// | `Lstm`, `BiLstm`: gates input, forget, cell, output | parts of `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0` (`_reverse`) |
    /// | `Gru`, `BiGru`: gates reset, update, new | likewise; with `reset_after`, as PyTorch computes it |
    /// | `Rnn`, `BiRnn` | likewise, one part |
    /// | `TransformerEncoderLayer`: `mha`, `pwff` | `self_attn`, `linear1` and `linear2` |
    /// | `TransformerDecoderLayer`: `self_attn`, `cross_attn` | `self_attn`, `multihead_attn` |
    /// | their `norm_1` … | `norm1` …, once [`Names::norm_first`] said in which order |
    ///
    /// A tensor under the plain name (`attention.query.weight`) is preferred if there is one. What
    /// PyTorch has and Burn has not is reported as a tensor without a parameter: attention with
    /// `bias_k` or of several widths, an LSTM with projections, layers of a recurrent module beyond
    /// the first (make a `Vec` of modules of them and [rename](Names::rename) `_l0`). How modules
    /// compute is not in a checkpoint: activations, `norm_first`, `reset_after` and epsilons are
    /// for their configuration.
    PyTorch,
}

/// Rules from a parameter's path to a tensor's name.
#[derive(Debug, Clone, Default)]
pub struct Names {
    layout: Layout,
    rules: Vec<Rule>,
    stacks: Vec<Stack>,
    norm_first: Option<bool>,
    optional_prefix: String,
    last_frames: bool,
}

#[derive(Debug, Clone)]
struct Rule {
    pattern: Regex,
    with: String,
    /// The part of the tensor, if the rule names one.
    part: Option<(usize, usize)>,
}

#[derive(Debug, Clone)]
struct Stack {
    pattern: Regex,
    with: String,
    /// The part of each module, how many it has, and how many modules there are.
    slot: usize,
    slots: usize,
    modules: usize,
    /// How many parts it takes.
    count: usize,
}

impl Names {
    /// The conventions of `layout` and no rule.
    pub fn new(layout: Layout) -> Self {
        Self { layout, ..Self::default() }
    }

    /// Whose conventions they follow.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The same rules after other conventions.
    pub(crate) fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Adds a rule, applied to the path after the layout's conventions and the earlier rules: every
    /// match of the regular expression `pattern` is replaced by `with` (`$1` is the first group).
    ///
    /// A rule that matches nothing does no harm by itself; if the module and the checkpoint do not
    /// match, the error points it out.
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression.
    pub fn rename(self, pattern: &str, with: &str) -> Result<Self, Error> {
        self.rule(pattern, with, None)
    }

    /// Adds a rule as [`Self::rename`] does, for parameters that share a tensor of which each is
    /// one of `parts` equal parts along the first axis as it is stored; `part` counts from 0.
    /// Nothing is copied or read twice for it.
    ///
    /// ```
    /// # use outsize_core::{Layout, Names};
    /// // One tensor `qkv.weight` of shape [3 * width, width]:
    /// let names = Names::new(Layout::PyTorch)
    ///     .part(r"\bq_proj\.", "qkv.", 0, 3)?
    ///     .part(r"\bk_proj\.", "qkv.", 1, 3)?
    ///     .part(r"\bv_proj\.", "qkv.", 2, 3)?;
    /// # Ok::<(), outsize_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression, or there is no such part.
    pub fn part(self, pattern: &str, with: &str, part: usize, parts: usize) -> Result<Self, Error> {
        if part >= parts {
            return Err(Error::Rule {
                pattern: pattern.to_string(),
                reason: format!("there is no part {part} of {parts}: they count from 0"),
            });
        }
        self.rule(pattern, with, Some((part, parts)))
    }

    /// Says that `modules` equal modules, such as experts, may be stacked: a parameter that has no
    /// tensor of its own name, but one that matches the regular expression `pattern`, is then a
    /// part of the tensor that `with` makes of that name, along the first axis or the first two.
    /// The number of its module is what the group `n` matches, from 0; of its `slots` parts this is
    /// `slot`, from 0.
    ///
    /// ```
    /// # use outsize_core::Names;
    /// // Of `[8, 2 * inner, outer]` and `[8, outer, inner]`:
    /// let names = Names::default()
    ///     .stacked(r"\.experts\.(?<n>\d+)\.gate\.weight$", ".experts.gate_up", [0, 2], 8)?
    ///     .stacked(r"\.experts\.(?<n>\d+)\.up\.weight$", ".experts.gate_up", [1, 2], 8)?
    ///     .stacked(r"\.experts\.(?<n>\d+)\.down\.weight$", ".experts.down", [0, 1], 8)?;
    /// # Ok::<(), outsize_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression with such a group, or there is no such
    /// part.
    pub fn stacked(
        mut self,
        pattern: &str,
        with: &str,
        [slot, slots]: [usize; 2],
        modules: usize,
    ) -> Result<Self, Error> {
        let regex = regex(pattern)?;
        let fault = |reason: String| Error::Rule { pattern: pattern.to_string(), reason };
        if !regex.capture_names().flatten().any(|name| name == "n") {
            return Err(fault("it has no group `(?<n>…)` for a module's number".to_string()));
        }
        if slot >= slots || slots.checked_mul(modules).is_none() {
            return Err(fault(format!("there is no part {slot} of {slots}: they count from 0")));
        }
        let with = with.to_string();
        self.stacks.push(Stack { pattern: regex, with, slot, slots, modules, count: 1 });
        Ok(self)
    }

    /// Says that a parameter whose name matches the regular expression `pattern` and that has no
    /// tensor of that name may be some of `of` equal parts of one, along the first axis: as
    /// projections of attention are that have fewer heads of keys than of queries.
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression, or there are no such parts.
    pub fn or_parts(
        mut self,
        pattern: &str,
        with: &str,
        parts: Range<usize>,
        of: usize,
    ) -> Result<Self, Error> {
        if parts.is_empty() || parts.end > of {
            let reason = format!("there are no parts {parts:?} of {of}");
            return Err(Error::Rule { pattern: pattern.to_string(), reason });
        }
        let (pattern, with) = (regex(pattern)?, with.to_string());
        let (slot, count) = (parts.start, parts.len());
        self.stacks.push(Stack { pattern, with, slot, slots: of, modules: 1, count });
        Ok(self)
    }

    /// Says how a parameter may be called whose name matches the regular expression `pattern` and
    /// that has no tensor of that name: as `with` makes it. Of several such rules the first one
    /// counts that makes the name of a tensor.
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression.
    pub fn or_rename(mut self, pattern: &str, with: &str) -> Result<Self, Error> {
        let (pattern, with) = (regex(pattern)?, with.to_string());
        self.stacks.push(Stack { pattern, with, slot: 0, slots: 1, modules: 1, count: 1 });
        Ok(self)
    }

    /// Where a parameter may be that has no tensor of this name, as it may be
    /// [stacked](Self::stacked) or have [another name](Self::or_rename): the preferred place first.
    pub fn otherwise(&self, tensor: &str) -> impl Iterator<Item = Location> {
        self.stacks(tensor).map(|(location, _)| location)
    }

    /// All such places, the preferred one first, with how many modules are stacked.
    pub(crate) fn stacks(&self, tensor: &str) -> impl Iterator<Item = (Location, usize)> {
        self.stacks.iter().filter_map(move |stack| {
            let number = stack.pattern.captures(tensor)?.name("n");
            let number: usize = number.map_or(Ok(0), |number| number.as_str().parse()).ok()?;
            let location = || Location {
                tensor: stack.pattern.replace(tensor, stack.with.as_str()).into_owned(),
                part: number * stack.slots + stack.slot,
                parts: stack.modules * stack.slots,
                count: stack.count,
            };
            (number < stack.modules).then(|| (location(), stack.modules))
        })
    }

    fn rule(
        mut self,
        pattern: &str,
        with: &str,
        part: Option<(usize, usize)>,
    ) -> Result<Self, Error> {
        self.rules.push(Rule { pattern: regex(pattern)?, with: with.to_string(), part });
        Ok(self)
    }

    /// Says whether the transformers of the module have `norm_first` set, which decides which norm
    /// of Burn's is which of PyTorch's. Without it such a checkpoint is refused rather than loaded
    /// wrong.
    pub fn norm_first(mut self, norm_first: bool) -> Self {
        self.norm_first = Some(norm_first);
        self
    }

    /// Says that a convolution of pictures `[out, in, rows, columns]` may be stored as one of
    /// films, `[out, in, frames, rows, columns]`, that sees no frame behind the one that it makes:
    /// of a picture, which has none before it either, its last frame alone counts, and is what is
    /// held.
    pub fn last_frames(mut self) -> Self {
        self.last_frames = true;
        self
    }

    /// Whether [that](Self::last_frames) was said.
    pub(crate) fn takes_last_frames(&self) -> bool {
        self.last_frames
    }

    /// Looks for a tensor without `prefix` as well, if there is none with it: some checkpoints save
    /// a model without its head, `h.0.ln_1.weight` for `transformer.h.0.ln_1.weight`.
    pub fn optional_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.optional_prefix = prefix.into();
        self
    }

    /// The other name of a tensor whose name has the optional prefix.
    pub(crate) fn without_prefix<'a>(&self, tensor: &'a str) -> Option<&'a str> {
        let prefix = Some(self.optional_prefix.as_str()).filter(|prefix| !prefix.is_empty())?;
        tensor.strip_prefix(prefix)
    }

    /// The name of the tensor that holds `parameter`, PyTorch's packed modules aside.
    pub fn tensor(&self, parameter: &Parameter) -> String {
        self.plain(parameter).tensor
    }

    /// Where the value is written: as the layout's own software would have it, packed modules
    /// included.
    ///
    /// # Errors
    /// [`Error::NormOrder`] if [`Self::norm_first`] is needed.
    pub(crate) fn destination(&self, parameter: &Parameter) -> Result<Location, Error> {
        let plain = self.plain(parameter);
        let packed = self.packed(parameter, &plain);
        let unknown = |_| Error::NormOrder { path: parameter.path.clone() };
        Ok(packed.map_err(unknown)?.unwrap_or(plain))
    }

    /// Where the value is if it has a tensor of its own.
    pub(crate) fn plain(&self, parameter: &Parameter) -> Location {
        let mut name = parameter.path.clone();
        if self.layout == Layout::PyTorch {
            name.truncate(name.len() - parameter.field().len());
            name.push_str(torch::field(parameter));
        }
        self.apply(Location::whole(name))
    }

    /// Where it is if not at `plain`.
    ///
    /// # Errors
    /// That cannot be told: [`Self::norm_first`] is needed.
    pub(crate) fn packed(
        &self,
        parameter: &Parameter,
        plain: &Location,
    ) -> Result<Option<Location>, NormOrder> {
        match self.layout {
            Layout::Burn => Ok(None),
            Layout::PyTorch => torch::location(parameter, self.norm_first).map(|location| {
                let location = self.apply(location);
                (location != *plain).then_some(location)
            }),
        }
    }

    fn apply(&self, mut location: Location) -> Location {
        for rule in &self.rules {
            if !rule.pattern.is_match(&location.tensor) {
                continue;
            }
            location.tensor =
                rule.pattern.replace_all(&location.tensor, rule.with.as_str()).into_owned();
            if let Some((part, parts)) = rule.part {
                (location.part, location.parts) = (part, parts);
            }
        }
        location
    }

    /// The patterns of the rules that match no parameter.
    pub(crate) fn unused(&self, parameters: &[Parameter]) -> Vec<String> {
        (0..self.rules.len())
            .filter(|at| {
                let before = Self { rules: self.rules[..*at].to_vec(), ..self.clone() };
                let rule = &self.rules[*at];
                !parameters.iter().any(|parameter| {
                    let plain = before.plain(parameter);
                    let packed = before.packed(parameter, &plain);
                    rule.pattern.is_match(&plain.tensor)
                        || matches!(packed, Ok(Some(other)) if rule.pattern.is_match(&other.tensor))
                })
            })
            .map(|at| self.rules[at].pattern.as_str().to_string())
            .collect()
    }

    /// Whether a tensor that belongs to no parameter can be left alone, `has` telling which others
    /// are used.
    pub(crate) fn is_bookkeeping(&self, tensor: &str, has: impl Fn(&str) -> bool) -> bool {
        self.layout == Layout::PyTorch
            && tensor
                .strip_suffix("num_batches_tracked")
                .is_some_and(|prefix| has(&format!("{prefix}running_mean")))
    }

    /// Whether the tensor is stored with its two axes the other way round than
    /// [`Parameter::shape`] says.
    pub fn is_transposed(&self, parameter: &Parameter) -> bool {
        // A `LinearLayout::Col` saves `[out, in]` itself: nothing is left to turn.
        self.layout == Layout::PyTorch
            && parameter.class() == "Linear"
            && parameter.field() == "weight"
            && parameter.shape.len() == 2
            && !parameter.flips
    }
}

fn regex(pattern: &str) -> Result<Regex, Error> {
    // Names are ASCII: a pattern takes some 70 KB with the digits of all scripts, and a sixth of
    // that with ten. What could then match half a character is built as it stands.
    let ascii = RegexBuilder::new(pattern).unicode(false).build();
    ascii.or_else(|_| Regex::new(pattern)).map_err(|error| Error::Rule {
        pattern: pattern.to_string(),
        reason: format!("it is not a regular expression: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use burn::tensor::DType;

    fn parameter(path: &str, class: &str, shape: &[usize]) -> Parameter {
        let mut containers = vec!["Vec".into(); path.matches('.').count()];
        containers.push(format!("Struct:{class}").into());
        Parameter {
            id: burn::module::ParamId::new(),
            path: path.to_string(),
            containers,
            kind: Kind::Float,
            shape: shape.to_vec(),
            dtype: DType::F32,
            hooked: false,
            streams: true,
            autodiff: false,
            flips: false,
            quantized: false,
        }
    }

    #[test]
    fn pytorch_says_weight_and_bias_and_turns_linear() {
        let names = Names::new(Layout::PyTorch);
        let gamma = parameter("layers.0.norm.gamma", "LayerNorm", &[4]);
        assert_eq!(names.tensor(&gamma), "layers.0.norm.weight");
        assert!(!names.is_transposed(&gamma));
        let beta = parameter("beta", "GroupNorm", &[4]);
        assert_eq!(names.tensor(&beta), "bias");
        let linear = parameter("head.weight", "Linear", &[4, 2]);
        assert_eq!(names.tensor(&linear), "head.weight");
        assert!(names.is_transposed(&linear));
        let column = Parameter { flips: true, ..linear.clone() };
        assert!(!names.is_transposed(&column));
        // A field of that name elsewhere is left alone.
        let other = parameter("gamma", "Mixer", &[4]);
        assert_eq!(names.tensor(&other), "gamma");
        assert_eq!(Names::new(Layout::Burn).tensor(&gamma), gamma.path);
        assert!(!Names::new(Layout::Burn).is_transposed(&linear));
    }

    #[test]
    fn rules_apply_one_after_the_other() {
        let names = Names::default()
            .rename(r"^layers\.(\d+)\.", "h.$1.")
            .and_then(|names| names.rename("^h", "transformer.h"))
            .unwrap();
        let weight = parameter("layers.12.up.weight", "Linear", &[1, 1]);
        assert_eq!(names.tensor(&weight), "transformer.h.12.up.weight");
        let error = Names::default().rename("(", "").unwrap_err().to_string();
        assert!(error.contains("`(`"), "{error}");
    }
}
