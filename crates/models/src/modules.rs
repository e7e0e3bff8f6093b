//! The modules of a model that hold a matrix, by the names that `transformers` has for them.

use outsize_core::Parameter;

use crate::ModelConfig;
use crate::stored_layout::is_rotated;

/// A module that holds a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleSpec {
    /// What `transformers` calls it. Of a language model that is a part of others there are several
    /// names, the one of the present version first.
    pub names: Vec<String>,
    /// The path of its matrix in our own module.
    pub path: String,
    /// `[out, in]`; of a table of embeddings `[rows, width]`.
    pub shape: [usize; 2],
    /// What it does with the matrix.
    pub kind: ModuleKind,
    /// The rows of a head, if the matrix is stored with those rows of a head beside each other that
    /// are rotated together, and transformers has them in two halves: of some GGUF files.
    pub interleaved_head: Option<usize>,
}

/// What a module does with its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// A linear layer, `[out, in]` as it is stored.
    Linear,
    /// The same, stored as `[in, out]`: GPT-2's `Conv1D`.
    InOut,
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
    /// A linear layer whose rows are stored in another order than transformers has them in, which is not undone: of some GGUF
    /// files.
    Reordered,
}

impl ModelConfig {
    /// Its modules that hold a matrix, in the order in which the model declares them.
    pub fn modules(&self) -> Vec<ModuleSpec> {
        let tied = self.tied_head().map(|(table, head)| {
            let table = self.parameters().iter().find(|parameter| parameter.path == table);
            table.and_then(|table| self.module(&head, table, ModuleKind::TiedHead))
        });
        let modules = self.parameters().iter().filter_map(|parameter| {
            self.module(&parameter.path, parameter, self.module_kind(parameter)?)
        });
        modules.chain(tied.flatten()).collect()
    }

    /// What the names of modules of other models begin with, in a checkpoint of several.
    pub fn other_modules(&self) -> &'static [&'static str] {
        self.row.multimodal.map_or(&[], |names| names.others)
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
            "Linear" => ModuleKind::Linear,
            "Conv1d" => ModuleKind::InOut,
            "Embedding" => ModuleKind::Embedding,
            "Router" => ModuleKind::Router,
            "HeadMatrices" => ModuleKind::HeadMatrices,
            _ => return None,
        })
    }

    /// The module whose matrix would be called `weight`.
    fn module(&self, weight: &str, parameter: &Parameter, kind: ModuleKind) -> Option<ModuleSpec> {
        let [rows, columns] = parameter.shape[..] else { return None };
        let shape = if kind == ModuleKind::InOut { [columns, rows] } else { [rows, columns] };
        let own = weight.strip_suffix(".weight")?;
        let other_parts = other_parts(self.model_type()).iter();
        let name =
            other_parts.fold(own.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs));
        let prefixes = self.row.multimodal.map_or(&[][..], |names| names.prefixes);
        let named = |(theirs, ours): &(&str, &str)| {
            name.strip_prefix(ours).map(|rest| format!("{theirs}{rest}"))
        };
        let mut names: Vec<_> = prefixes.iter().filter_map(named).collect();
        names.push(name.clone());
        if name != own {
            names.push(own.to_owned());
        }
        let interleaved_head = self.layout.interleaved_head.filter(|_| is_rotated(own));
        Some(ModuleSpec { names, path: parameter.path.clone(), shape, kind, interleaved_head })
    }
}

/// Parts of the names of modules that are others here, where they are those of the published checkpoint, than in `transformers`:
/// ours first.
fn other_parts(model_type: &str) -> &'static [(&'static str, &'static str)] {
    match model_type {
        "axk2" => &[
            (".self_attn.q_b_proj", ".self_attn.q_gate_proj"),
            (".input_gate.", ".input_layernorm.mlp."),
            (".post_attention_gate.", ".post_attention_layernorm.mlp."),
        ],
        "bailing_hybrid" | "kimi_linear" => &[(".self_attn.f_", ".self_attn.forget_gate.f_")],
        "flint" => &[(".mlp.shared_experts.", ".mlp.shared_expert.")],
        "lfm3" => &[(".self_attn.gate_proj", ".self_attn.g_proj")],
        "nanochat" => &[(".mlp.up_proj", ".mlp.fc1"), (".mlp.down_proj", ".mlp.fc2")],
        _ => &[],
    }
}
