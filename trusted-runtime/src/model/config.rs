//! The sizes of a model, from whichever file it came.

use super::family::Architecture;
use crate::{
    Error,
    linear::{Group, LinearId},
};
use serde::Serialize;

/// The checked sizes of a model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelConfig {
    /// Which forward pass.
    pub architecture: Architecture,
    /// Name from the file.
    pub name: String,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Most positions that one sequence may hold.
    pub context: usize,
    /// Number of tokens.
    pub vocab: usize,
    /// Added to the variance in every norm.
    pub norm_epsilon: f32,
    /// Base of the rotary frequencies; 0 without rotary positions.
    pub rope_base: f64,
    /// Whether the LM head is the token embedding.
    pub tied_head: bool,
    /// Number of weights, tied ones once.
    pub parameters: u64,
}

/// Largest value of any size: what fits the index arithmetic and no more than a real model has.
const LARGEST: usize = 1 << 24;

impl ModelConfig {
    /// Checks what the forward pass relies on.
    ///
    /// # Errors
    /// [`Error::Model`] naming `file`, the field and the values.
    pub fn check(&self, file: &str) -> Result<(), Error> {
        let sizes = [
            ("layers", self.layers),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("context", self.context),
            ("vocab", self.vocab),
        ];
        for (name, value) in sizes {
            if value == 0 || value > LARGEST {
                return Err(Error::Model(format!("{file}: {name} is {value}, expected 1 to {LARGEST}")));
            }
        }
        if self.layers > 4096 {
            return Err(Error::Model(format!("{file}: layers is {}, expected at most 4096", self.layers)));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::Model(format!(
                "{file}: {} heads do not divide among {} key/value heads",
                self.heads, self.kv_heads
            )));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon >= 0.0 && self.norm_epsilon < 1.0) {
            return Err(Error::Model(format!("{file}: norm epsilon is {}, expected [0, 1)", self.norm_epsilon)));
        }
        self.architecture.family().check(self).map_err(|m| Error::Model(format!("{file}: {m}")))
    }

    /// Checks what rotary positions rely on.
    ///
    /// # Errors
    /// What was found and what was expected.
    pub(super) fn check_rotary(&self) -> Result<(), String> {
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim is {}, expected an even number", self.head_dim));
        }
        if !(self.rope_base.is_finite() && self.rope_base >= 1.0) {
            return Err(format!("rope base is {}, expected at least 1", self.rope_base));
        }
        Ok(())
    }

    /// Width of the query vector.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the key vector, and of the value vector.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows and columns of one linear group.
    pub fn linear_shape(&self, group: Group) -> (usize, usize) {
        match group {
            Group::Qkv => (self.q_width() + 2 * self.kv_width(), self.d_model),
            Group::Output => (self.d_model, self.q_width()),
            Group::GateUp if self.architecture.family().gated() => (2 * self.d_ff, self.d_model),
            Group::GateUp => (self.d_ff, self.d_model),
            Group::Down => (self.d_model, self.d_ff),
            Group::Head => (self.vocab, self.d_model),
        }
    }

    /// Every linear matrix, in the order in which one position needs them.
    pub fn linear_ids(&self) -> Vec<LinearId> {
        let layers = u32::try_from(self.layers).expect("check() bounds the number of layers");
        let mut ids: Vec<LinearId> = (0..layers)
            .flat_map(|layer| {
                [Group::Qkv, Group::Output, Group::GateUp, Group::Down].map(|group| LinearId { layer, group })
            })
            .collect();
        ids.push(LinearId { layer: 0, group: Group::Head });
        ids
    }
}
