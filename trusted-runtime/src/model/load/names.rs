//! What Hugging Face calls the tensors that GGUF names, and how their layouts differ.

/// What turns a stored tensor into the canonical layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As stored.
    Same,
    /// Stored [inputs][outputs] (GPT-2's `Conv1D`).
    Transposed,
    /// Stored without the 1 that is to be added to every weight (Gemma's norms).
    LessOne,
    /// Query or key rows of this many heads, stored as (first half, second half) of rotary pairs; canonical order
    /// interleaves them.
    Halves(usize),
}

/// Block number and part of a canonical tensor name: `blk.3.attn_q.weight` is ("3", "attn_q.weight").
pub(crate) fn block_part(canonical: &str) -> Option<(&str, &str)> {
    canonical.strip_prefix("blk.")?.split_once('.')
}

/// Name and layout of a tensor in files of Llama's successors; `part` names the parts of a block (without
/// `.weight`) that are peculiar to a family.
pub(crate) fn gated_block(
    canonical: &str,
    part: impl Fn(&str) -> Option<(&'static str, Layout)>,
) -> Option<(String, Layout)> {
    let whole = match canonical {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(name) = whole {
        return Some((name.to_owned(), Layout::Same));
    }
    let (block, of_block) = block_part(canonical)?;
    let of_block = of_block.strip_suffix(".weight")?;
    let (name, layout) = part(of_block).or_else(|| {
        let name = match of_block {
            "attn_norm" => "input_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_output" => "self_attn.o_proj",
            "ffn_norm" => "post_attention_layernorm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return None,
        };
        Some((name, Layout::Same))
    })?;
    Some((format!("model.layers.{block}.{name}.weight"), layout))
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
        if self == Self::LessOne {
            return values.into_iter().map(|v| v + 1.0).collect();
        }
        let [rows, cols] = *stored else { return values };
        match self {
            Self::Same | Self::LessOne => values,
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
        assert_eq!(Layout::LessOne.canonical(&[2], vec![0.5, -1.0]), [1.5, 0.0]);
        assert_eq!(Layout::Transposed.shape(vec![4, 2]), [2, 4]);
    }
}
