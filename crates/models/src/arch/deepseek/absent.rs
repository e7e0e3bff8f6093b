//! What fields of these models may leave out.

use super::super::rms_config::RmsDefaults;

/// What `transformers` takes where a field is absent.
pub(super) struct Absent {
    pub sizes: RmsDefaults<'static>,
    pub experts: usize,
    pub per_token: Option<usize>,
    pub shared: usize,
    pub moe_intermediate_size: usize,
    /// Layers without experts, the first ones.
    pub dense: usize,
    pub scale: f64,
    pub normalized: bool,
    pub groups: (usize, usize),
    pub latent: LatentWidths,
}

/// The widths of attention over a compressed cache.
#[derive(Clone, Copy)]
pub(super) struct LatentWidths {
    /// `None`: queries are not compressed.
    pub query_rank: Option<usize>,
    pub rank: usize,
    pub plain: usize,
    pub rotated: usize,
    pub value: usize,
}
