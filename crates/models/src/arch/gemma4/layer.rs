//! The decoder layer of Gemma 4.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

use super::Gemma4Config;
use crate::layers::{
    Activation, Expert, FusedMlp, Linear, Mlp, RmsNorm, Rotation, Router, SharedAttention,
    announce_all, entered, expert_activations, ones, route, spread,
};
use crate::pass::Pass;
use crate::{Activations, Error, Init, KvCache, PassShape};

/// One decoder layer: attention, then an MLP and perhaps experts, with norms around both, then what
/// the layer has of the tokens themselves.
#[derive(Module, Debug)]
pub struct Gemma4DecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: SharedAttention,
    /// `[hidden]`: of what attention gives.
    pub post_attention_layernorm: RmsNorm,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
    /// `[hidden]`: of what the MLP gives, where experts are beside it.
    pub post_feedforward_layernorm_1: Option<RmsNorm>,
    /// Scores the experts.
    pub router: Option<Gemma4Router>,
    /// `[hidden]`: before the experts.
    pub pre_feedforward_layernorm_2: Option<RmsNorm>,
    /// Gated feed-forward blocks; none in models without.
    pub experts: Vec<FusedMlp>,
    /// `[hidden]`: of what the experts give.
    pub post_feedforward_layernorm_2: Option<RmsNorm>,
    /// `[hidden]`: of what both give.
    pub post_feedforward_layernorm: RmsNorm,
    /// `[width, hidden]`: how much the layer takes of its input.
    pub per_layer_input_gate: Option<Linear>,
    /// `[hidden, width]`.
    pub per_layer_projection: Option<Linear>,
    /// `[hidden]`.
    pub post_per_layer_input_norm: Option<RmsNorm>,
    /// `[1]`: what all of it is multiplied by. It does not learn.
    pub layer_scalar: Param<Tensor<1>>,
    #[module(skip)]
    activation: Activation,
    is_local: bool,
}

/// Scores experts of tokens that are normed and scaled before.
#[derive(Module, Debug)]
pub struct Gemma4Router {
    /// `[experts, hidden]`.
    pub proj: Router,
    /// `[hidden]`.
    pub scale: Param<Tensor<1>>,
    /// `[experts]`: what shares are multiplied by.
    pub per_expert_scale: Param<Tensor<1>>,
    epsilon: f64,
}

impl Gemma4Router {
    /// What the experts make of `experts_in`, chosen by `x`: `[batch, tokens, hidden]` f32 both, to
    /// the same.
    fn mixed(&self, x: Tensor<3>, experts_in: Tensor<3>, experts: &[FusedMlp]) -> Tensor<3> {
        let [batch, tokens, hidden] = x.dims();
        let flat = |x: Tensor<3>| entered(x, &self.proj.weight).reshape([batch * tokens, hidden]);
        let (x, experts_in) = (flat(x), flat(experts_in));
        let scale = self.scale.val().cast(DType::F32) * (hidden as f64).powf(-0.5);
        let normed = outsize_kernels::rms_norm(x, scale, self.epsilon);
        let mut routed = route(normed, &self.proj, None);
        let dims = routed.shares.dims();
        let device = routed.shares.device();
        let of_expert = self.per_expert_scale.val().cast(DType::F32).to_device(&device);
        let of_expert = of_expert.select(0, routed.places.clone().flatten(0, 1)).reshape(dims);
        routed.shares = routed.shares * of_expert;
        spread(experts_in, routed, false, experts).reshape([batch, tokens, hidden])
    }
}

impl Gemma4DecoderLayer {
    /// The layer of that number, without storage.
    pub fn new(config: &Gemma4Config, index: usize, init: &Init) -> Self {
        let (text, own) = (&config.text, &config.layers[index]);
        let hidden = text.hidden_size;
        let norm = || RmsNorm::new(hidden, text.rms_norm_eps, init);
        let experts = text.experts;
        let with_experts = || experts.map(|_| norm());
        let input = |from, to| Linear::new(from, to, false, init);
        let activation = text.activation;
        Self {
            input_layernorm: norm(),
            self_attn: SharedAttention::new(&config.attention(index), init),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: norm(),
            mlp: Mlp::new(hidden, own.intermediate_size, false, activation, init),
            post_feedforward_layernorm_1: with_experts(),
            router: experts.map(|experts| Gemma4Router {
                proj: Router::new(hidden, experts.count, experts.routing, init),
                scale: ones(hidden, &init.device),
                per_expert_scale: ones(experts.count, &init.device),
                epsilon: text.rms_norm_eps,
            }),
            pre_feedforward_layernorm_2: with_experts(),
            experts: experts.map_or_else(Vec::new, |experts| {
                let one = |_| FusedMlp::new(hidden, experts.intermediate_size, activation, init);
                (0..experts.count).map(one).collect()
            }),
            post_feedforward_layernorm_2: with_experts(),
            post_feedforward_layernorm: norm(),
            per_layer_input_gate: config.per_layer.map(|inputs| input(hidden, inputs.width)),
            per_layer_projection: config.per_layer.map(|inputs| input(inputs.width, hidden)),
            post_per_layer_input_norm: config.per_layer.map(|_| norm()),
            layer_scalar: ones(1, &init.device),
            activation,
            is_local: text.windows[index].is_some(),
        }
    }

    /// `[batch, tokens, hidden]` f32, and `[batch, tokens, width]` f32 of the layer's own input if
    /// it has one, to the former.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        input: Option<Tensor<3>>,
        rotations: &[Rotation; 2],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Tensor<3>, Error> {
        if let Some(router) = &self.router {
            announce_all(&self.experts, &router.proj, pass.rows());
        }
        let x = self.input_layernorm.entered(x);
        let normed = self.input_layernorm.forward(x.clone());
        let rotation = &rotations[usize::from(self.is_local)];
        let mut positions = pass.query_positions();
        if !self.is_local {
            // The tokens of an image see each other in windows alone.
            positions.groups = &[];
        }
        let mixed = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let (x, input) = (pass.needed(x), input.map(|input| pass.needed(input)));
        let mixed = self.post_attention_layernorm.forward(mixed);
        let (x, normed) = self.pre_feedforward_layernorm.add_forward(x, mixed);
        let inner = self.mlp.forward(normed);
        let experts = (&self.router, &self.pre_feedforward_layernorm_2);
        let behind = (&self.post_feedforward_layernorm_1, &self.post_feedforward_layernorm_2);
        let inner = match (experts, behind) {
            ((Some(router), Some(before)), (Some(of_mlp), Some(of_experts))) => {
                let inner = of_mlp.forward(inner);
                let given = before.forward(x.clone());
                inner + of_experts.forward(router.mixed(x.clone(), given, &self.experts))
            }
            _ => inner,
        };
        let mut x = x + self.post_feedforward_layernorm.forward(inner);
        if let (Some(gate), Some(projection), Some(norm), Some(input)) = (
            &self.per_layer_input_gate,
            &self.per_layer_projection,
            &self.post_per_layer_input_norm,
            input,
        ) {
            let gated = self.activation.apply(gate.forward(x.clone()));
            let taken = gated.clone() * input.to_device(&gated.device());
            x = x + norm.forward(projection.forward(taken));
        }
        let scalar = self.layer_scalar.val().cast(DType::F32).detach().to_device(&x.device());
        Ok(x * scalar.reshape([1, 1, 1]))
    }

    /// What it holds at most, besides the residual stream, the rotations and the layers' own
    /// inputs.
    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.input_layernorm.width() as u64;
        let mut most = self.self_attn.activations(pass).or(Expert::activations(&self.mlp, pass));
        if let Some(router) = &self.router {
            let experts = expert_activations(&router.proj, &self.experts, pass);
            most = most.or(experts.and(Activations::values(pass.rows() * 3 * hidden)));
        }
        let input = self.per_layer_input_gate.as_ref().map_or(0, |gate| {
            let [width, _]: [usize; 2] = gate.weight.lazy_shape().dims();
            width as u64
        });
        // The gate, what it takes and a part of the layers' inputs; what comes of it and its norm.
        // And the sum beside its product with the scalar.
        let own = Activations::values(pass.rows() * (4 * input + 3 * hidden));
        most.or(own)
    }
}
