//! The modules of a model that hold a matrix, by the names that `transformers` has for them.

use outsize_core::Parameter;

use crate::ModelConfig;
use crate::stored_layout::is_rotated;

/// A module that holds a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSpec {
    /// What `transformers` calls it. Of a language model that is a part of others there are several
    /// names, the one of the present version first; experts and what chooses them are called as
    /// before version 5 first.
    pub names: Vec<String>,
    /// The path of its matrix in our own module.
    pub path: String,
    /// `[out, in]`; of a table of embeddings `[rows, width]`.
    pub shape: [usize; 2],
    /// What it does with the matrix.
    pub kind: ModuleKind,
    /// Whether the matrix is stored as `[in, out]`, as GPT-2's `Conv1D`.
    pub in_out: bool,
    /// The rows of a head, if the matrix is stored with those rows of a head beside each other that
    /// are rotated together, and transformers has them in two halves: of some GGUF files.
    pub interleaved_head: Option<usize>,
    /// Of an expert's, where `transformers` 5 has it: in a parameter for all experts.
    pub stack: Option<ExpertStack>,
}

/// Where the matrix of an expert is in the parameter of `transformers` that has those of all
/// experts, `[experts, out, in]` or `[experts, in, out]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertStack {
    /// What the parameter is called, `model.layers.0.mlp.experts.gate_up_proj`: as
    /// [`ModuleSpec::names`], the one of the present version first.
    pub names: Vec<String>,
    /// The expert's number.
    pub expert: usize,
    /// How many experts there are.
    pub experts: usize,
    /// Which of its outputs is the matrix's first.
    pub first: usize,
    /// How far apart its outputs are: 2 where those of gate and up are in turns.
    pub step: usize,
    /// How many outputs it has.
    pub height: usize,
    /// Whether it is `[experts, in, out]` and PEFT takes it for `[experts, out, in]`: in Llama 4,
    /// whose module does not say so.
    pub mistaken: bool,
}

/// What a module does with its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A linear layer.
    Linear,
    /// A linear layer that makes logits.
    Head,
    /// A table of embeddings.
    Embedding,
    /// The table of embeddings, as the output head that has no matrix of its own.
    TiedHead,
    /// A linear layer of an expert.
    Expert,
    /// A layer that chooses experts.
    Router,
    /// A linear layer of which latent attention multiplies parts.
    HeadMatrices,
    /// A linear layer whose rows are stored in another order than transformers has them in, which
    /// is not undone: of some GGUF files.
    Reordered,
}

impl ModelConfig {
    /// Its modules that hold a matrix, in the order in which the model declares them.
    pub fn modules(&self) -> Vec<ModuleSpec> {
        let tied = self.tied_head().map(|(table, head)| {
            let table = self.parameters().iter().find(|parameter| parameter.path == table);
            table.and_then(|table| self.module(&head, table, ModuleKind::TiedHead, false))
        });
        let are_in_out = self.experts_are_in_out();
        let modules = self.parameters().iter().filter_map(|parameter| {
            let kind = self.module_kind(parameter)?;
            let in_out = match (kind, self.model_type()) {
                (ModuleKind::Expert, "dbrx") => parameter.path.ends_with(".w2.weight"),
                (ModuleKind::Expert, _) => are_in_out,
                _ => parameter.class() == "Conv1d",
            };
            self.module(&parameter.path, parameter, kind, in_out)
        });
        modules.chain(tied.flatten()).collect()
    }

    /// Whether the matrices of experts whose gate is in one with what it multiplies are stored as
    /// `[in, out]`: the one then has the columns of the gate and of the other, and the next one
    /// takes as many.
    fn experts_are_in_out(&self) -> bool {
        let parameter = |end: &str| {
            let mut parameters = self.parameters().iter();
            let found = parameters.find(|parameter| parameter.path.ends_with(end))?;
            <[usize; 2]>::try_from(&found.shape[..]).ok()
        };
        let both = parameter(".experts.0.gate_up_proj.weight")
            .zip(parameter(".experts.0.down_proj.weight"));
        both.is_some_and(|(both, down)| both == [down[1], 2 * down[0]])
    }

    /// What the names of modules of other models begin with, in a checkpoint of several.
    pub fn other_modules(&self) -> &'static [&'static str] {
        self.row.multimodal.map_or(&[], |names| names.others)
    }

    /// Whether checkpoints are published with the matrices of all experts of a layer in one tensor:
    /// none has had a name of its own in any version of `transformers`.
    pub fn stacks_experts(&self) -> bool {
        self.row.is_stacked || self.model_type() == "dbrx"
    }

    pub(crate) fn module_kind(&self, parameter: &Parameter) -> Option<ModuleKind> {
        if parameter.field() != "weight" {
            return None;
        }
        Some(match parameter.class() {
            "Linear" | "Conv1d" if parameter.path.contains(".experts.") => ModuleKind::Expert,
            "Linear" if parameter.path.strip_suffix(".weight") == Some(self.row.head) => {
                ModuleKind::Head
            }
            "Linear" if self.layout.reorders(&parameter.path) => ModuleKind::Reordered,
            "Linear" | "Conv1d" => ModuleKind::Linear,
            "Embedding" => ModuleKind::Embedding,
            "Router" => ModuleKind::Router,
            "HeadMatrices" => ModuleKind::HeadMatrices,
            _ => return None,
        })
    }

    /// The module whose matrix would be called `weight`.
    fn module(
        &self,
        weight: &str,
        parameter: &Parameter,
        kind: ModuleKind,
        in_out: bool,
    ) -> Option<ModuleSpec> {
        let [rows, columns] = parameter.shape[..] else { return None };
        let shape = if in_out { [columns, rows] } else { [rows, columns] };
        let own = weight.strip_suffix(".weight")?;
        let is_of_experts = matches!(kind, ModuleKind::Expert | ModuleKind::Router);
        let names = self.transformers_names(own, is_of_experts);
        let interleaved_head = self.layout.interleaved_head.filter(|_| is_rotated(own));
        let stack = self.stack(own, shape).filter(|_| kind == ModuleKind::Expert);
        let path = parameter.path.clone();
        Some(ModuleSpec { names, path, shape, kind, in_out, interleaved_head, stack })
    }

    /// What `transformers` calls what is `own` here: where that is another name than the
    /// published one, that comes first or last.
    fn transformers_names(&self, own: &str, published_first: bool) -> Vec<String> {
        let other_parts = other_parts(self.model_type()).iter();
        let name =
            other_parts.fold(format!("{own}."), |name, (ours, theirs)| name.replace(ours, theirs));
        let name = name.trim_end_matches('.');
        let prefixes = self.row.multimodal.map_or(&[][..], |names| names.prefixes);
        let named = |(theirs, ours): &(&str, &str)| {
            name.strip_prefix(ours).map(|rest| format!("{theirs}{rest}"))
        };
        let mut names: Vec<_> = prefixes.iter().filter_map(named).collect();
        if names.iter().all(|other| other != name) {
            names.push(name.to_owned());
        }
        if name != own {
            names.insert(if published_first { 0 } else { names.len() }, own.to_owned());
        }
        names
    }

    /// Where an expert's matrix `[out, in]` is in a parameter for all.
    fn stack(&self, own: &str, [out, _]: [usize; 2]) -> Option<ExpertStack> {
        let (layer, expert) = own.split_once(".experts.")?;
        let (expert, field) = expert.split_once('.')?;
        let experts = self.routed(&format!("{own}.weight"))?.experts as usize;
        let (field, slot, slots) = match (self.model_type(), field) {
            // Stacks of the one are matrices, of the other there are more than experts with
            // weights.
            ("dbrx" | "longcat_flash", _) => return None,
            (_, "gate_up_proj" | "down_proj") | ("nemotron_h", "up_proj") => (field, 0, 1),
            (_, "w2") => ("down_proj", 0, 1),
            (_, "gate_proj" | "w1") => ("gate_up_proj", 0, 2),
            (_, "up_proj" | "w3") => ("gate_up_proj", 1, 2),
            _ => return None,
        };
        let in_turns = self.model_type() == "gpt_oss";
        Some(ExpertStack {
            names: self.transformers_names(&format!("{layer}.experts.{field}"), false),
            expert: expert.parse().ok()?,
            experts,
            first: if in_turns { slot } else { slot * out },
            step: if in_turns { slots } else { 1 },
            height: slots * out,
            mistaken: matches!(self.model_type(), "llama4" | "llama4_text"),
        })
    }
}

/// Parts of the names of modules that are others here, where they are those of the published
/// checkpoint, than in `transformers`: ours first.
fn other_parts(model_type: &str) -> &'static [(&'static str, &'static str)] {
    match model_type {
        "afmoe" => &[(".mlp.gate.", ".mlp.router.gate.")],
        "axk2" => &[
            (".self_attn.q_b_proj", ".self_attn.q_gate_proj"),
            (".input_gate.", ".input_layernorm.mlp."),
            (".post_attention_gate.", ".post_attention_layernorm.mlp."),
        ],
        "bailing_hybrid" | "kimi_linear" => &[(".self_attn.f_", ".self_attn.forget_gate.f_")],
        "flint" => &[(".mlp.shared_experts.", ".mlp.shared_expert.")],
        "granitemoe" | "granitemoe_swa" | "granitemoehybrid" | "granitemoeshared" => {
            &[(".router.layer.", ".router.")]
        }
        "lfm3" => &[(".self_attn.gate_proj", ".self_attn.g_proj")],
        "longcat_flash" => &[(".mlp.router.", ".mlp.router.classifier.")],
        "minimax" | "minimax_m2" | "mixtral" => &[(".block_sparse_moe.", ".mlp.")],
        "nanochat" => &[(".mlp.up_proj", ".mlp.fc1"), (".mlp.down_proj", ".mlp.fc2")],
        "phimoe" => &[(".block_sparse_moe.gate.", ".mlp.router."), (".block_sparse_moe.", ".mlp.")],
        _ => &[],
    }
}
