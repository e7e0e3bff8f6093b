//! What is kept of each tensor while all weights learn, and in which files.

use std::collections::HashMap;
use std::ops::Range;

use outsize_checkpoint::{Checkpoint, Dtype, TensorInfo, TensorSpec};
use outsize_core::StoredParameter;

use crate::Error;

/// The least that a file of several tensors holds, if there is more, in bytes.
const LEAST_GROUP: u64 = 256 << 20;

/// Files of an even division, at most.
const MOST_GROUPS: u64 = 64;

/// Ends of the names of what is kept of a tensor besides its weights: in f32 the weights, if these
/// are narrower, and the two moments of AdamW; and of the number of steps that a file has.
pub(super) const MASTER: &str = ".master";
pub(super) const FIRST_MOMENT: &str = ".exp_avg";
pub(super) const SECOND_MOMENT: &str = ".exp_avg_sq";
pub(super) const STEP: &str = ".outsize_step";

/// The ends of the names of all that is no weight.
pub(super) const STATES: [&str; 4] = [MASTER, FIRST_MOMENT, SECOND_MOMENT, STEP];

/// What a training does with a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LearningRole {
    /// It stays as it is, and may be of any type.
    Fixed,
    /// Passes change it, and say after each step what it has become: a running statistic.
    Statistic,
    /// It has a gradient.
    Learns,
}

/// A tensor of the model.
#[derive(Debug, Clone)]
pub(super) struct LearningTensor {
    /// As the model's checkpoint has it.
    pub info: TensorInfo,
    /// What the training does with it.
    pub role: LearningRole,
    /// Where its gradient, or what it becomes, begins among those of all, in values.
    pub gradient: u64,
}

/// Which tensors of a checkpoint learn, and how what is kept of them is divided among files.
#[derive(Debug, Clone)]
pub struct OffloadLayout {
    /// In the order of the checkpoint.
    pub(super) tensors: Vec<LearningTensor>,
    /// Those of each file.
    pub(super) groups: Vec<Range<usize>>,
}

impl LearningTensor {
    /// How many there are in it, unless it is fixed.
    pub fn values(&self) -> u64 {
        self.info.len / self.info.dtype.size() as u64
    }

    /// The name of its weights in f32.
    pub fn master(&self) -> String {
        match self.info.dtype {
            Dtype::F32 => self.info.name.clone(),
            _ => self.named(MASTER),
        }
    }

    pub fn named(&self, end: &str) -> String {
        format!("{}{end}", self.info.name)
    }

    /// What is kept of it.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let TensorInfo { name, dtype, shape, .. } = &self.info;
        let spec = |name, dtype| TensorSpec::new(name, dtype, shape.clone());
        let mut specs = vec![spec(name.clone(), *dtype)];
        if self.role == LearningRole::Learns {
            if *dtype != Dtype::F32 {
                specs.push(spec(self.master(), Dtype::F32));
            }
            specs
                .extend([FIRST_MOMENT, SECOND_MOMENT].map(|end| spec(self.named(end), Dtype::F32)));
        }
        specs
    }

    /// Bytes of all that is kept of it.
    fn bytes(&self) -> u64 {
        let more = match (self.role, self.info.dtype) {
            (LearningRole::Learns, Dtype::F32) => self.values().saturating_mul(4 * 2),
            (LearningRole::Learns, _) => self.values().saturating_mul(4 * 3),
            _ => 0,
        };
        self.info.len.saturating_add(more)
    }
}

impl OffloadLayout {
    /// That of parameters and their roles.
    ///
    /// # Errors
    /// [`Error::NotFloats`] for a parameter that changes and is not stored as floats.
    pub fn new(
        checkpoint: &Checkpoint,
        parameters: impl IntoIterator<Item = (StoredParameter, LearningRole)>,
    ) -> Result<Self, Error> {
        let mut roles: HashMap<String, LearningRole> = HashMap::new();
        for (parameter, role) in parameters {
            let weight = &parameter.weight;
            let tensor = weight.data();
            let is_float = matches!(tensor.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16);
            if role != LearningRole::Fixed && !(weight.format().is_plain() && is_float) {
                return Err(Error::NotFloats {
                    path: checkpoint.folder().to_owned(),
                    what: format!("{} in {}", tensor.name, tensor.dtype),
                });
            }
            for tensor in weight.tensors() {
                let of_tensor = roles.entry(tensor.name.clone()).or_insert(role);
                *of_tensor = role.max(*of_tensor);
            }
        }
        let tensors = checkpoint.tensors().iter().filter_map(|info| {
            let role = *roles.get(&info.name)?;
            Some(LearningTensor { info: info.clone(), role, gradient: 0 })
        });
        let mut tensors: Vec<_> = tensors.collect();
        let mut next = 0;
        for role in [LearningRole::Learns, LearningRole::Statistic] {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.role == role) {
                tensor.gradient = next;
                next += tensor.values();
            }
        }
        let bytes = tensors.iter().map(LearningTensor::bytes);
        let limit = LEAST_GROUP.max(bytes.fold(0, u64::saturating_add) / MOST_GROUPS);
        let layout = Self { tensors, groups: Vec::new() };
        Ok(layout.divided(limit))
    }

    /// The same in files of at most so many bytes, if they are of several tensors.
    pub fn divided(mut self, limit: u64) -> Self {
        self.groups.clear();
        let (mut start, mut held) = (0, 0u64);
        for (at, tensor) in self.tensors.iter().enumerate() {
            if at > start && held.saturating_add(tensor.bytes()) > limit {
                self.groups.push(start..at);
                (start, held) = (at, 0);
            }
            held = held.saturating_add(tensor.bytes());
        }
        self.groups.push(start..self.tensors.len());
        self
    }

    /// Values that learn.
    pub fn values(&self) -> u64 {
        self.of_role(LearningRole::Learns).map(LearningTensor::values).fold(0, u64::saturating_add)
    }

    /// Values that learn or are statistics.
    pub(super) fn changing(&self) -> u64 {
        let statistics = self.of_role(LearningRole::Statistic).map(LearningTensor::values);
        statistics.fold(self.values(), u64::saturating_add)
    }

    pub(super) fn of_role(&self, role: LearningRole) -> impl Iterator<Item = &LearningTensor> {
        self.tensors.iter().filter(move |tensor| tensor.role == role)
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of a file.
    pub(super) fn group_bytes(&self, group: &Range<usize>) -> u64 {
        self.tensors[group.clone()].iter().map(LearningTensor::bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the largest file.
    pub(super) fn largest_group(&self) -> u64 {
        self.groups.iter().map(|group| self.group_bytes(group)).max().unwrap_or(0)
    }

    /// Bytes that a training holds on the disk at most: weights and moments, what a step writes
    /// beside them, and gradients.
    pub(super) fn disk_bytes(&self) -> u64 {
        let groups = self.groups.iter().map(|group| self.group_bytes(group));
        let states = groups.fold(0, u64::saturating_add);
        states
            .saturating_add(self.largest_group())
            .saturating_add(self.changing().saturating_mul(4))
    }

    /// What the file of a group holds.
    pub(super) fn specs(&self, group: usize) -> Vec<TensorSpec> {
        let tensors = &self.tensors[self.groups[group].clone()];
        let step = TensorSpec::new(step_name(group), Dtype::I64, []);
        tensors.iter().flat_map(LearningTensor::specs).chain([step]).collect()
    }
}

/// The name of the number of steps that a file has.
pub(super) fn step_name(group: usize) -> String {
    format!("{group:05}{STEP}")
}

/// The name of a group's file.
pub(super) fn file_name(group: usize) -> String {
    format!("group-{group:05}.safetensors")
}
