//! The operator graph of one step of a model: linear groups, and enclave windows between them.
//!
//! A window is everything from one linear group to the next: it decrypts, computes in f32 and encrypts again (DtE).
//! Neighbouring operations are one window, so a step has one window more than it has linear groups.

use crate::{
    linear::{Group, LinearId, integer},
    model::{ModelConfig, Weights},
};
use serde::Serialize;

/// What an enclave window does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "operations by their usual names")]
pub enum Operation {
    Embedding,
    Norm,
    Rotary,
    Attention,
    Gate,
    Residual,
    Sampling,
}

/// A matrix, and how many vectors go through it in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearNode {
    /// Which one.
    pub id: LinearId,
    /// Rows and columns of W.
    pub rows: usize,
    /// Entries of an input vector.
    pub cols: usize,
    /// int8 planes: the evaluator's matrix has `planes·rows` rows.
    pub planes: usize,
    /// Vectors.
    pub vectors: usize,
}

/// Neighbouring operations in the enclave.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Window {
    /// In their order.
    pub operations: Vec<Operation>,
    /// f32 values that element-wise operations write, over all positions.
    pub elements: usize,
    /// Multiply-adds of attention, over all positions.
    pub attention: usize,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A linear group, which may be delegated.
    Linear(LinearNode),
    /// What only the enclave does.
    Window(Window),
}

/// A step: the nodes in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// In the order of execution.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// The step that makes one token with `held` positions in the cache.
    pub fn decode(config: &ModelConfig, weights: Weights, held: usize) -> Self {
        Self::step(config, weights, held, 1)
    }

    /// The step that takes a prompt of `positions` into an empty cache and makes the first token.
    pub fn prompt(config: &ModelConfig, weights: Weights, positions: usize) -> Self {
        Self::step(config, weights, 0, positions.max(1))
    }

    fn step(c: &ModelConfig, weights: Weights, held: usize, positions: usize) -> Self {
        let mut graph = Self { nodes: Vec::new() };
        let planes = integer::planes(weights);
        // Position held + i sees itself and all before it; each costs a score and a weighted value a head.
        let seen: usize = (held + 1..=held + positions).sum();
        graph.window(Operation::Embedding, positions * c.d_model);
        for id in c.linear_ids() {
            let (rows, cols) = c.linear_shape(id.group);
            match id.group {
                Group::Qkv | Group::GateUp => graph.window(Operation::Norm, positions * c.d_model),
                Group::Output => {
                    if c.rope_base > 0.0 {
                        graph.window(Operation::Rotary, positions * (c.q_width() + c.kv_width()));
                    }
                    graph.open().attention += 2 * seen * c.q_width();
                    graph.window(Operation::Attention, positions * c.q_width());
                }
                Group::Down => graph.window(Operation::Gate, positions * c.d_ff),
                // Only the last position has logits.
                Group::Head => graph.window(Operation::Norm, c.d_model),
            }
            let vectors = if id.group == Group::Head { 1 } else { positions };
            graph.nodes.push(Node::Linear(LinearNode { id, rows, cols, planes, vectors }));
            match id.group {
                Group::Output | Group::Down => graph.window(Operation::Residual, positions * c.d_model),
                Group::Head => graph.window(Operation::Sampling, c.vocab),
                Group::Qkv | Group::GateUp => {}
            }
        }
        graph
    }

    /// The window that the last node is, or a new one.
    fn open(&mut self) -> &mut Window {
        if !matches!(self.nodes.last(), Some(Node::Window(_))) {
            self.nodes.push(Node::Window(Window::default()));
        }
        match self.nodes.last_mut() {
            Some(Node::Window(window)) => window,
            _ => unreachable!("a window was just pushed"),
        }
    }

    fn window(&mut self, operation: Operation, elements: usize) {
        let window = self.open();
        window.operations.push(operation);
        window.elements += elements;
    }

    /// The linear groups in their order.
    pub fn linears(&self) -> impl Iterator<Item = &LinearNode> {
        self.nodes.iter().filter_map(|n| match n {
            Node::Linear(linear) => Some(linear),
            Node::Window(_) => None,
        })
    }

    /// The windows in their order.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.nodes.iter().filter_map(|n| match n {
            Node::Linear(_) => None,
            Node::Window(window) => Some(window),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use Operation::{Attention, Embedding, Gate, Norm, Residual, Rotary, Sampling};

    /// The tiny model `name` of the end-to-end tests.
    pub(crate) fn tiny(name: &str) -> ModelConfig {
        let file = format!("{}/../tests/testdata/tiny/tiny-{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        crate::model::inspect(&file, &|_, _, _| {}).unwrap().config
    }

    #[test]
    fn linear_groups_come_in_the_models_order_and_windows_lie_between_them() {
        for name in ["llama", "gpt2", "qwen3", "gemma3"] {
            let c = tiny(name);
            for weights in [Weights::W8, Weights::W16] {
                let graph = Graph::decode(&c, weights, 10);
                assert_eq!(graph.linears().map(|l| l.id).collect::<Vec<_>>(), c.linear_ids());
                let planes = integer::planes(weights);
                assert!(graph.linears().all(|l| (l.rows, l.cols) == c.linear_shape(l.id.group) && l.planes == planes));
                // Alternating, windows at both ends.
                assert_eq!(graph.nodes.len(), 2 * (4 * c.layers + 1) + 1);
                assert!(graph.nodes.iter().step_by(2).all(|n| matches!(n, Node::Window(_))));
            }
        }
    }

    #[test]
    fn neighbours_are_one_window() {
        let c = tiny("llama");
        let graph = Graph::decode(&c, Weights::W8, 0);
        let windows: Vec<_> = graph.windows().map(|w| w.operations.clone()).collect();
        assert_eq!(windows[0], [Embedding, Norm]);
        assert_eq!(windows[1], [Rotary, Attention]);
        assert_eq!(windows[2], [Residual, Norm]);
        assert_eq!(windows[3], [Gate]);
        assert_eq!(windows[4], [Residual, Norm]);
        assert_eq!(windows.last().unwrap(), &[Sampling]);
        let gpt2 = Graph::decode(&tiny("gpt2"), Weights::W8, 0);
        assert_eq!(gpt2.windows().nth(1).unwrap().operations, [Attention]);
    }

    #[test]
    fn a_prompt_has_one_vector_a_position_and_one_for_the_head() {
        let c = tiny("llama");
        let (prompt, decode) = (Graph::prompt(&c, Weights::W8, 7), Graph::decode(&c, Weights::W8, 6));
        for l in prompt.linears() {
            assert_eq!(l.vectors, if l.id.group == Group::Head { 1 } else { 7 });
        }
        let attention = |g: &Graph| g.windows().nth(1).unwrap().attention;
        assert_eq!(attention(&decode), 2 * 7 * c.q_width());
        assert_eq!(attention(&prompt), 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7) * c.q_width());
        assert_eq!(prompt.windows().next().unwrap().elements, 14 * c.d_model);
    }
}
