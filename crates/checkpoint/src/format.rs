//! Storage formats: which tensors of a checkpoint make one weight, and what its elements take in
//! them.

use crate::checkpoint::TensorInfo;
use crate::dtype::{Dtype, ElementBlock};
use crate::integers::{IntegerOrder, IntegerWidth, Integers, ZeroPoints};

/// Elements that share a scale in microscaling formats …
const MX_BLOCK: usize = 32;

/// … and the bytes that they take in 4 bits each.
const MX_BYTES: usize = MX_BLOCK / 2;

/// Rows or columns that a scale is for if it is for all: more than a matrix has, and a multiple of
/// the lanes of any vector.
const ALL: usize = 1 << 30;

/// How a weight is stored: its elements in one tensor, and perhaps scales in another.
///
/// | format | data | scales |
/// |---|---|---|
/// | [`plain`](Self::plain) | any [`Dtype`] | |
/// | `plain` of GGUF's blocks | one of [`Dtype::GGUF_BLOCKS`] | in each block of the data |
/// | [`fp8`](Self::fp8), as DeepSeek-V3 is published | `F8_E4M3` | `F32`, one per block of rows and columns, `weight_scale_inv` |
/// | [`whole_fp8`](Self::whole_fp8), of Mistral | `F8_E4M3` | `F32` or `BF16`, one, `weight_scale_inv` |
/// | [`compressed_fp8`](Self::compressed_fp8), of compressed-tensors | `F8_E4M3` | `F32` or `BF16`, one per row or one, `weight_scale` |
/// | [`mxfp4`](Self::mxfp4), as gpt-oss is published | `F4`, `weight_blocks` | `F8_E8M0`, one per 32 elements of a row, `weight_scales` |
/// | [`deepseek_v4_fp8`](Self::deepseek_v4_fp8), of DeepSeek-V4 | `F8_E4M3`, `weight` | `F8_E8M0`, one per block of rows and columns, `scale` |
/// | [`deepseek_v4_fp4`](Self::deepseek_v4_fp4), of its experts | `F4` in `I8`, `weight` | `F8_E8M0`, one per 32 elements of a row, `scale` |
/// | [`packed_integers`](Self::packed_integers), [`gptq`](Self::gptq), [`awq`](Self::awq) | [`Integers`] | any float, one per group of a row |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageFormat {
    /// How elements lie in the data tensor.
    pub encoding: Encoding,
    /// The end of the weight's name that those of its tensors lack.
    pub weight_suffix: &'static str,
    /// What is appended to the weight's name in that of the data tensor.
    pub data_suffix: &'static str,
    /// The scales that elements are multiplied by, if they have a tensor of their own.
    pub scales: Option<ScaleGrid>,
}

/// How the elements of a row lie in the data tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// One after the other, in the tensor's own type.
    Elements(Dtype),
    /// Integers in words, with zero points in a tensor of their own.
    Integers(Integers),
}

/// One scale for each block of a matrix; blocks at the right and lower edges may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScaleGrid {
    /// What is appended to the weight's name in theirs.
    pub suffix: &'static str,
    /// The type of a scale.
    pub dtype: Dtype,
    /// Rows and columns that one scale is for; each at least one.
    pub block: [usize; 2],
}

impl Encoding {
    /// The type of the data tensor.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::Elements(dtype) => dtype,
            Self::Integers(integers) => integers.width.dtype(),
        }
    }

    /// What is stored together.
    pub const fn block(self) -> ElementBlock {
        self.dtype().block()
    }

    /// Bytes of a row of so many elements; none if it does not end with a block, or if that
    /// overflows.
    pub fn row_bytes(self, columns: usize) -> Option<u64> {
        match self {
            Self::Elements(_) => self.block().row_bytes(columns),
            Self::Integers(integers) => integers.width.row_bytes(columns),
        }
    }
}

impl ScaleGrid {
    /// A scale for so many columns of each row, or for all if that is zero.
    const fn of_groups(group: usize) -> Self {
        let width = if group == 0 { ALL } else { group };
        Self { suffix: "", dtype: Dtype::F32, block: [1, width] }
    }

    /// Rows and columns of the scales of a matrix of this shape.
    pub fn shape(&self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let [height, width] = self.block;
        [rows.div_ceil(height.max(1)), columns.div_ceil(width.max(1))]
    }
}

impl StorageFormat {
    /// Elements one after the other, without scales.
    pub const fn plain(dtype: Dtype) -> Self {
        let encoding = Encoding::Elements(dtype);
        Self { encoding, weight_suffix: "", data_suffix: "", scales: None }
    }

    /// Numbers of 8 bits (E4M3) with a 32-bit scale for each block of so many rows and columns.
    pub const fn fp8(block: [usize; 2]) -> Self {
        Self {
            scales: Some(ScaleGrid { suffix: "_scale_inv", dtype: Dtype::F32, block }),
            ..Self::plain(Dtype::F8E4M3)
        }
    }

    /// The same with one scale for all of a matrix, as Mistral publishes its models.
    pub const fn whole_fp8() -> Self {
        Self::fp8([ALL, ALL])
    }

    /// Numbers of 8 bits (E4M3) as compressed-tensors writes them: with one scale for each row, or
    /// one for all.
    pub const fn compressed_fp8(each_row: bool) -> Self {
        let block = [if each_row { 1 } else { ALL }, ALL];
        Self {
            scales: Some(ScaleGrid { suffix: "_scale", dtype: Dtype::F32, block }),
            ..Self::plain(Dtype::F8E4M3)
        }
    }

    /// Numbers of 4 bits with a power of two for each 32 of a row, both as bytes: `[.., n, 16]` and
    /// `[.., n]` for rows of `32 · n` elements ([OCP microscaling
    /// formats](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)).
    pub const fn mxfp4() -> Self {
        let block = [1, MX_BLOCK];
        Self {
            data_suffix: "_blocks",
            scales: Some(ScaleGrid { suffix: "_scales", dtype: Dtype::F8E8M0, block }),
            ..Self::plain(Dtype::F4)
        }
    }

    /// Numbers of 8 bits (E4M3) with a power of two for each block of so many rows and columns, as
    /// DeepSeek-V4 is published.
    pub const fn deepseek_v4_fp8(block: [usize; 2]) -> Self {
        Self {
            weight_suffix: "weight",
            data_suffix: "weight",
            scales: Some(ScaleGrid { suffix: "scale", dtype: Dtype::F8E8M0, block }),
            ..Self::plain(Dtype::F8E4M3)
        }
    }

    /// Numbers as [`mxfp4`](Self::mxfp4) has them, two in each byte `[out, in / 2]`, as the experts
    /// of DeepSeek-V4 are published.
    pub const fn deepseek_v4_fp4() -> Self {
        let format = Self::deepseek_v4_fp8([1, MX_BLOCK]);
        Self { encoding: Encoding::Elements(Dtype::F4), ..format }
    }

    /// The format of a tensor of this type in a checkpoint in this format: experts of DeepSeek-V4
    /// are in another one.
    pub(crate) fn of_tensor(self, data: Dtype) -> Self {
        let is_deepseek_v4 =
            matches!(self.scales, Some(grid) if self == Self::deepseek_v4_fp8(grid.block));
        if is_deepseek_v4 && data == Dtype::I8 { Self::deepseek_v4_fp4() } else { self }
    }

    /// Integers in words as compressed-tensors packs them (`weight_packed`), with a scale for so
    /// many columns of a row, or for all if that is zero, and zero points, or none.
    pub const fn packed_integers(width: IntegerWidth, group: usize, zeros: bool) -> Self {
        let zeros = if zeros { ZeroPoints::Stored } else { ZeroPoints::Middle };
        let encoding = Integers { width, order: IntegerOrder::Rows, zeros };
        let data_suffix = if matches!(width, IntegerWidth::I8) { "" } else { "_packed" };
        let scales = ScaleGrid { suffix: "_scale", ..ScaleGrid::of_groups(group) };
        Self { data_suffix, ..Self::integers(encoding, scales) }
    }

    /// Integers as GPTQ stores them (`qweight`): zero points may be less one.
    pub const fn gptq(width: IntegerWidth, group: usize, zeros: ZeroPoints) -> Self {
        let encoding = Integers { width, order: IntegerOrder::Columns, zeros };
        let scales = ScaleGrid { suffix: "scales", ..ScaleGrid::of_groups(group) };
        let format = Self::integers(encoding, scales);
        Self { weight_suffix: "weight", data_suffix: "qweight", ..format }
    }

    /// Integers of 4 bits as AWQ stores them (`qweight`).
    pub const fn awq(group: usize) -> Self {
        let format = Self::gptq(IntegerWidth::U4, group, ZeroPoints::Stored);
        let (width, zeros) = (IntegerWidth::U4, ZeroPoints::Stored);
        let order = IntegerOrder::Interleaved;
        Self { encoding: Encoding::Integers(Integers { width, order, zeros }), ..format }
    }

    const fn integers(encoding: Integers, scales: ScaleGrid) -> Self {
        let plain = Self::plain(encoding.width.dtype());
        Self { encoding: Encoding::Integers(encoding), scales: Some(scales), ..plain }
    }

    /// The same in memory, where integers lie [row after row](Integers::in_memory).
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        if let Encoding::Integers(integers) = &mut self.encoding {
            *integers = integers.in_memory();
        }
        self
    }

    /// The same with scales of the type that they are found to be of, if they may be.
    #[must_use]
    pub fn with_scales(mut self, found: Dtype) -> Self {
        let may = match self.encoding {
            Encoding::Elements(Dtype::F4) => found == Dtype::BF16,
            Encoding::Elements(_) => [Dtype::F32, Dtype::BF16].contains(&found),
            Encoding::Integers(_) => [Dtype::F32, Dtype::F16, Dtype::BF16].contains(&found),
        };
        if let Some(grid) = &mut self.scales
            && may
        {
            grid.dtype = found;
        }
        self
    }

    /// Whether elements are numbers that need neither scales nor neighbours.
    pub const fn is_plain(&self) -> bool {
        self.scales.is_none() && self.encoding.block().elements == 1
    }

    /// The integers that elements are, if they are.
    pub const fn as_integers(&self) -> Option<Integers> {
        match self.encoding {
            Encoding::Integers(integers) => Some(integers),
            Encoding::Elements(_) => None,
        }
    }

    /// Bytes of the data of a weight of this shape; none if there can be no such, or if that
    /// overflows.
    pub(crate) fn data_bytes(&self, shape: [usize; 2]) -> Option<u64> {
        let (rows, row) = match self.encoding {
            Encoding::Elements(dtype) => (shape[0], dtype.block().row_bytes(shape[1])?),
            Encoding::Integers(integers) => {
                let [rows, words] = integers.data_shape(shape)?;
                let size = integers.width.stored().size();
                (rows, words.checked_mul(size)? as u64)
            }
        };
        row.checked_mul(rows as u64)
    }

    /// What the names of a weight's tensors begin with: the name is the weight's or that of the
    /// data.
    fn stem<'a>(&self, name: &'a str) -> &'a str {
        let of_data = name.strip_suffix(self.data_suffix);
        of_data.or_else(|| name.strip_suffix(self.weight_suffix)).unwrap_or(name)
    }

    /// The name of the weight that the tensor of this name is the data of.
    pub fn weight_name(&self, data: &str) -> String {
        let stem = data.strip_suffix(self.data_suffix).unwrap_or(data);
        format!("{stem}{}", self.weight_suffix)
    }

    /// The name of the data tensor of the weight of this name.
    pub fn data_name(&self, weight: &str) -> String {
        let stem = weight.strip_suffix(self.weight_suffix).unwrap_or(weight);
        format!("{stem}{}", self.data_suffix)
    }

    /// The name of the scales that belong to the data tensor of this name.
    pub fn scales_name(&self, data: &str) -> Option<String> {
        self.scales.map(|grid| format!("{}{}", self.stem(data), grid.suffix))
    }

    /// The name of the zero points that belong to the data tensor of this name.
    pub fn zeros_name(&self, data: &str) -> Option<String> {
        let integers = self.as_integers().filter(|it| it.zeros != ZeroPoints::Middle)?;
        let suffix = if integers.is_turned() { "qzeros" } else { "_zero_point" };
        Some(format!("{}{suffix}", self.stem(data)))
    }

    /// The name of what may say which group each column belongs to, beside the data tensor of this
    /// name.
    pub fn order_name(&self, data: &str) -> Option<String> {
        let suffix = match self.as_integers()?.order {
            IntegerOrder::Rows => "_g_idx",
            IntegerOrder::Columns => "g_idx",
            IntegerOrder::Interleaved => return None,
        };
        Some(format!("{}{suffix}", self.stem(data)))
    }

    /// The name of what says the shape of the weight once more, beside the data tensor of this
    /// name.
    pub fn shape_name(&self, data: &str) -> Option<String> {
        let integers = self.as_integers().filter(|integers| !integers.is_turned())?;
        (integers.width != IntegerWidth::I8).then(|| format!("{}_shape", self.stem(data)))
    }

    /// Name, type and shape of the tensors that a weight of this shape is stored in: data, then
    /// scales. The name is the weight's or that of the data.
    pub fn tensors(&self, name: &str, shape: [usize; 2]) -> Vec<(String, Dtype, Vec<usize>)> {
        let data = format!("{}{}", self.stem(name), self.data_suffix);
        let grid = self.scales.map(|grid| (grid.dtype, grid.shape(shape)));
        let scales = self.scales_name(&data).zip(grid);
        match (self.encoding.dtype(), scales) {
            (Dtype::F4, Some((scales, (dtype, [rows, blocks]))))
                if *self == Self::deepseek_v4_fp4() =>
            {
                vec![
                    (data, Dtype::I8, vec![rows, shape[1] / 2]),
                    (scales, dtype, vec![rows, blocks]),
                ]
            }
            (Dtype::F4, Some((scales, (_, [rows, blocks])))) => vec![
                (data, Dtype::U8, vec![rows, blocks, MX_BYTES]),
                (scales, Dtype::U8, vec![rows, blocks]),
            ],
            (_, Some((scales, (dtype, groups)))) if let Encoding::Integers(it) = self.encoding => {
                let turn =
                    |[a, b]: [usize; 2]| if it.is_turned() { vec![b, a] } else { vec![a, b] };
                let zeros = self.zeros_name(&data);
                let zeros =
                    zeros.map(|name| (name, it.width.stored(), it.zeros_shape(groups).to_vec()));
                let of_data = it.data_shape(shape).unwrap_or(shape).to_vec();
                let shape = self.shape_name(&data).map(|name| (name, Dtype::I64, vec![2]));
                [(data, it.width.stored(), of_data), (scales, dtype, turn(groups))]
                    .into_iter()
                    .chain(zeros)
                    .chain(shape)
                    .collect()
            }
            (dtype, scales) => {
                let scales = scales.map(|(name, (dtype, shape))| (name, dtype, shape.to_vec()));
                std::iter::once((data, dtype, shape.to_vec())).chain(scales).collect()
            }
        }
    }

    /// A tensor of bytes or words as the matrix of numbers that it is, if it has the name, the type
    /// and the shape of one: with so many `columns`, if it may have them.
    pub(crate) fn numbers_of(
        &self,
        data: &TensorInfo,
        columns: Option<usize>,
    ) -> Option<TensorInfo> {
        if !data.name.ends_with(self.data_suffix) {
            return None;
        }
        if let Encoding::Integers(integers) = self.encoding {
            let shape = integers.shape_of(data.shape[..].try_into().ok()?, columns)?.to_vec();
            let dtype = integers.width.dtype();
            return (data.dtype == integers.width.stored()).then(|| TensorInfo {
                dtype,
                shape,
                ..data.clone()
            });
        }
        if let (true, [rows, bytes]) = (*self == Self::deepseek_v4_fp4(), &data.shape[..]) {
            let shape = vec![*rows, bytes.checked_mul(2)?];
            return Some(TensorInfo { dtype: Dtype::F4, shape, ..data.clone() })
                .filter(|_| data.dtype == Dtype::I8);
        }
        let [leading @ .., blocks, MX_BYTES] = &data.shape[..] else {
            return None;
        };
        let rows = leading.iter().product();
        let is_it = data.dtype == Dtype::U8 && self.encoding.dtype() == Dtype::F4;
        let shape = vec![rows, blocks.checked_mul(MX_BLOCK)?];
        is_it.then(|| TensorInfo { dtype: Dtype::F4, shape, ..data.clone() })
    }
}
