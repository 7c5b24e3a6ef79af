//! What Hugging Face calls the tensors that GGUF names, and how their layouts differ.

use crate::model::config::{Architecture, ModelConfig};

/// What turns a stored tensor into the canonical layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// As stored.
    Same,
    /// Stored [inputs][outputs] (GPT-2's `Conv1D`).
    Transposed,
    /// Query or key rows of this many heads, stored as (first half, second half) of rotary pairs; canonical order
    /// interleaves them.
    Halves(usize),
}

/// The Hugging Face name (without a prefix that some files add) and the layout of a canonical tensor; none
/// for a name that no architecture has.
pub(super) fn stored(c: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
    match c.architecture {
        Architecture::Llama => llama(c, canonical),
        Architecture::Gpt2 => gpt2(canonical),
    }
}

fn llama(c: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
    let plain = |name: &str| Some((name.to_owned(), Layout::Same));
    match canonical {
        "token_embd.weight" => return plain("model.embed_tokens.weight"),
        "output_norm.weight" => return plain("model.norm.weight"),
        "output.weight" => return plain("lm_head.weight"),
        _ => {}
    }
    let (block, part) = canonical.strip_prefix("blk.")?.split_once('.')?;
    let (name, layout) = match part.strip_suffix(".weight")? {
        "attn_norm" => ("input_layernorm", Layout::Same),
        "attn_q" => ("self_attn.q_proj", Layout::Halves(c.heads)),
        "attn_k" => ("self_attn.k_proj", Layout::Halves(c.kv_heads)),
        "attn_v" => ("self_attn.v_proj", Layout::Same),
        "attn_output" => ("self_attn.o_proj", Layout::Same),
        "ffn_norm" => ("post_attention_layernorm", Layout::Same),
        "ffn_gate" => ("mlp.gate_proj", Layout::Same),
        "ffn_up" => ("mlp.up_proj", Layout::Same),
        "ffn_down" => ("mlp.down_proj", Layout::Same),
        _ => return None,
    };
    Some((format!("model.layers.{block}.{name}.weight"), layout))
}

fn gpt2(canonical: &str) -> Option<(String, Layout)> {
    let plain = |name: &str| Some((name.to_owned(), Layout::Same));
    match canonical {
        "token_embd.weight" => return plain("wte.weight"),
        "position_embd.weight" => return plain("wpe.weight"),
        "output_norm.weight" => return plain("ln_f.weight"),
        "output_norm.bias" => return plain("ln_f.bias"),
        "output.weight" => return plain("lm_head.weight"),
        _ => {}
    }
    let (block, part) = canonical.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let (name, linear) = match part {
        "attn_norm" => ("ln_1", false),
        "attn_qkv" => ("attn.c_attn", true),
        "attn_output" => ("attn.c_proj", true),
        "ffn_norm" => ("ln_2", false),
        "ffn_up" => ("mlp.c_fc", true),
        "ffn_down" => ("mlp.c_proj", true),
        _ => return None,
    };
    let layout = if linear && kind == "weight" { Layout::Transposed } else { Layout::Same };
    Some((format!("h.{block}.{name}.{kind}"), layout))
}

/// Buffers that old files carry and no forward pass needs.
pub(super) fn is_buffer(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

impl Layout {
    /// The shape as stored of a tensor whose canonical shape this is, and the other way round.
    pub(super) fn shape(self, mut shape: Vec<usize>) -> Vec<usize> {
        if self == Self::Transposed {
            shape.reverse();
        }
        shape
    }

    /// Stored values, of the shape `stored`, in canonical order.
    pub(super) fn canonical(self, stored: &[usize], values: Vec<f32>) -> Vec<f32> {
        let [rows, cols] = *stored else { return values };
        match self {
            Self::Same => values,
            Self::Transposed => {
                let mut out = vec![0f32; values.len()];
                // Blocks of 32 by 32 stay in the cache both ways.
                for r0 in (0..rows).step_by(32) {
                    for c0 in (0..cols).step_by(32) {
                        for r in r0..(r0 + 32).min(rows) {
                            for c in c0..(c0 + 32).min(cols) {
                                out[c * rows + r] = values[r * cols + c];
                            }
                        }
                    }
                }
                out
            }
            Self::Halves(heads) => {
                let half = rows / heads / 2;
                let mut out = Vec::with_capacity(values.len());
                for head in 0..heads {
                    for row in 0..2 * half {
                        let from = head * 2 * half + (row % 2) * half + row / 2;
                        out.extend_from_slice(&values[from * cols..(from + 1) * cols]);
                    }
                }
                out
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let values: Vec<f32> = (0u8..8).map(f32::from).collect();
        assert_eq!(Layout::Same.canonical(&[4, 2], values.clone()), values);
        assert_eq!(Layout::Transposed.canonical(&[4, 2], values.clone()), [0., 2., 4., 6., 1., 3., 5., 7.]);
        // One head of four rows: rows 0, 2 are a pair, rows 1, 3 another.
        assert_eq!(Layout::Halves(1).canonical(&[4, 2], values.clone()), [0., 1., 4., 5., 2., 3., 6., 7.]);
        assert_eq!(Layout::Halves(2).canonical(&[4, 2], values.clone()), values);
        assert_eq!(Layout::Transposed.shape(vec![4, 2]), [2, 4]);
    }
}
