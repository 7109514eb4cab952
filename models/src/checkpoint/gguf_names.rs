//! What GGUF files call the tensors of Hugging Face checkpoints.

/// A module's name in GGUF and in Hugging Face checkpoints.
type Pair = (&'static str, &'static str);

/// Modules outside the layers.
const TOP: [Pair; 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Modules of a layer that mean the same in every architecture.
const LAYER: [Pair; 10] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Norms that stand in front of blocks only.
const PRE_NORMS: [Pair; 1] = [("ffn_norm", "post_attention_layernorm")];

/// Norms that stand behind blocks, and perhaps in front of them too.
const POST_NORMS: [Pair; 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Projections in one tensor. They come before [`LAYER`].
const PACKED: [Pair; 2] = [("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")];

/// The router and the expert that all tokens share.
const QWEN_MOE: [Pair; 5] = [
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
const MIXTRAL: [Pair; 1] = [("ffn_gate_inp", "block_sparse_moe.gate")];

/// Projections of all experts of a layer in one tensor: its name, and what surrounds the expert's number.
const QWEN_EXPERTS: [(&str, &str, &str); 3] = [
    ("ffn_gate_exps", "mlp.experts", "gate_proj"),
    ("ffn_up_exps", "mlp.experts", "up_proj"),
    ("ffn_down_exps", "mlp.experts", "down_proj"),
];
const MIXTRAL_EXPERTS: [(&str, &str, &str); 3] = [
    ("ffn_gate_exps", "block_sparse_moe.experts", "w1"),
    ("ffn_up_exps", "block_sparse_moe.experts", "w3"),
    ("ffn_down_exps", "block_sparse_moe.experts", "w2"),
];

/// The names of one architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufNames {
    /// Tables of a layer's modules; the first that knows a name decides.
    layer: [&'static [Pair]; 3],
    experts: &'static [(&'static str, &'static str, &'static str)],
}

/// Where a tensor lies: by itself, or as one of the matrices of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufPlace {
    /// The tensor of the file.
    pub(crate) tensor: String,
    /// Which matrix of it.
    pub(crate) expert: Option<usize>,
}

impl GgufNames {
    /// The names of an architecture, given by its name in `config.json`.
    pub(crate) fn of(architecture: &str) -> Self {
        let plain = Self { layer: [&LAYER, &PRE_NORMS, &[]], experts: &[] };
        match architecture {
            "Gemma2ForCausalLM" | "Gemma3ForCausalLM" | "Olmo2ForCausalLM" => {
                Self { layer: [&LAYER, &POST_NORMS, &[]], ..plain }
            }
            "Phi3ForCausalLM" => Self { layer: [&PACKED, &LAYER, &PRE_NORMS], ..plain },
            "Qwen2MoeForCausalLM" | "Qwen3MoeForCausalLM" => {
                Self { layer: [&LAYER, &PRE_NORMS, &QWEN_MOE], experts: &QWEN_EXPERTS }
            }
            "MixtralForCausalLM" => Self { layer: [&LAYER, &PRE_NORMS, &MIXTRAL], experts: &MIXTRAL_EXPERTS },
            _ => plain,
        }
    }

    /// Where `model.layers.3.self_attn.q_proj.weight` lies: in `blk.3.attn_q.weight`.
    pub(crate) fn place(&self, hf: &str) -> Option<GgufPlace> {
        let (stem, kind) = hf.rsplit_once('.')?;
        let Some(rest) = stem.strip_prefix("model.layers.") else {
            let (top, _) = TOP.iter().find(|(_, ours)| *ours == stem)?;
            return Some(GgufPlace { tensor: format!("{top}.{kind}"), expert: None });
        };
        let (layer, module) = rest.split_once('.')?;
        let (part, expert) = match self.pairs().find(|(_, ours)| *ours == module) {
            Some((part, _)) => (part, None),
            None => self.expert(module).map(|(part, expert)| (part, Some(expert)))?,
        };
        Some(GgufPlace { tensor: format!("blk.{layer}.{part}.{kind}"), expert })
    }

    /// The Hugging Face names of a tensor that is `num_experts` matrices; one where it is a single one.
    pub(crate) fn names(&self, gguf: &str, num_experts: usize) -> Option<Vec<String>> {
        let (stem, kind) = gguf.rsplit_once('.')?;
        let Some(rest) = stem.strip_prefix("blk.") else {
            let (_, ours) = TOP.iter().find(|(top, _)| *top == stem)?;
            return Some(vec![format!("{ours}.{kind}")]);
        };
        let (layer, part) = rest.split_once('.')?;
        if let Some((_, module)) = self.pairs().find(|(theirs, _)| *theirs == part) {
            return Some(vec![format!("model.layers.{layer}.{module}.{kind}")]);
        }
        let (experts, part) = match part.split_once('.') {
            // Older files have a tensor for each expert.
            Some((part, expert)) => {
                let expert: usize = expert.parse().ok()?;
                (expert..expert.checked_add(1)?, format!("{part}_exps"))
            }
            None => (0..num_experts, part.to_owned()),
        };
        let (_, before, after) = self.experts.iter().find(|(theirs, ..)| *theirs == part)?;
        let name = |expert: usize| format!("model.layers.{layer}.{before}.{expert}.{after}.{kind}");
        Some(experts.map(name).collect())
    }

    fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.layer.into_iter().flatten().copied()
    }

    fn expert(&self, module: &str) -> Option<(&'static str, usize)> {
        self.experts.iter().find_map(|(part, before, after)| {
            let number = module.strip_prefix(before)?.strip_prefix('.')?;
            let number = number.strip_suffix(after)?.strip_suffix('.')?;
            Some((*part, number.parse().ok()?))
        })
    }
}

impl GgufPlace {
    /// The tensor of an expert alone, as older files have it: `blk.0.ffn_up.3.weight` for `blk.0.ffn_up_exps.weight[3]`.
    pub(crate) fn tensor_of_expert(&self) -> Option<String> {
        let (part, kind) = self.tensor.split_once("_exps.")?;
        Some(format!("{part}.{}.{kind}", self.expert?))
    }
}

impl std::fmt::Display for GgufPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.expert {
            Some(expert) => write!(f, "{}[{expert}]", self.tensor),
            None => f.write_str(&self.tensor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(architecture: &str, hf: &str, expected: &str) {
        let names = GgufNames::of(architecture);
        let place = names.place(hf).unwrap();
        assert_eq!(place.to_string(), expected);
        let back = names.names(&place.tensor, 8).unwrap();
        assert_eq!(back[place.expert.unwrap_or(0)], hf);
    }

    #[test]
    fn names_map_both_ways() {
        let llama = "LlamaForCausalLM";
        check(llama, "model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight");
        check(llama, "model.layers.11.self_attn.k_proj.bias", "blk.11.attn_k.bias");
        check(llama, "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight");
        check(llama, "model.embed_tokens.weight", "token_embd.weight");
        check(llama, "lm_head.weight", "output.weight");
        let gemma = "Gemma2ForCausalLM";
        check(gemma, "model.layers.0.post_attention_layernorm.weight", "blk.0.post_attention_norm.weight");
        check(gemma, "model.layers.0.pre_feedforward_layernorm.weight", "blk.0.ffn_norm.weight");
        check("Phi3ForCausalLM", "model.layers.1.mlp.gate_up_proj.weight", "blk.1.ffn_up.weight");
        let moe = "Qwen3MoeForCausalLM";
        check(moe, "model.layers.2.mlp.experts.7.up_proj.weight", "blk.2.ffn_up_exps.weight[7]");
        check(moe, "model.layers.2.mlp.gate.weight", "blk.2.ffn_gate_inp.weight");
        let mixtral = "MixtralForCausalLM";
        check(
            mixtral,
            "model.layers.2.block_sparse_moe.experts.1.w2.weight",
            "blk.2.ffn_down_exps.weight[1]",
        );
    }

    #[test]
    fn an_expert_may_have_a_tensor_of_its_own() {
        let (names, ours) =
            (GgufNames::of("MixtralForCausalLM"), "model.layers.2.block_sparse_moe.experts.5.w2.weight");
        let tensor = names.place(ours).unwrap().tensor_of_expert().unwrap();
        assert_eq!(tensor, "blk.2.ffn_down.5.weight");
        assert_eq!(names.names(&tensor, 8).unwrap(), [ours]);
        assert_eq!(names.place("model.norm.weight").unwrap().tensor_of_expert(), None);
        assert_eq!(names.names(&format!("blk.2.ffn_down.{}.weight", usize::MAX), 8), None);
    }

    #[test]
    fn unheard_of_names_have_no_place() {
        let names = GgufNames::of("LlamaForCausalLM");
        assert_eq!(names.names("blk.0.unheard_of.weight", 1), None);
        assert_eq!(names.place("model.layers.0.mlp.experts.1.up_proj.weight"), None);
    }
}
