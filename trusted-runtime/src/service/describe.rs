//! What is being served, and how: the answer to `Describe`.

use crate::{
    engine::{Policy, Protocol},
    model::{ModelConfig, Weights},
    pool::Stats,
};
use kernels::Ring;
use proto::v1;

/// The fixed part of the answer, and how to ask for the evaluator's part.
pub struct Description {
    fixed: v1::DescribeResponse,
    evaluator: Box<dyn Fn() -> Option<v1::EvaluatorInfo> + Send + Sync>,
    lanes: Box<dyn Fn() -> Option<Stats> + Send + Sync>,
}

/// What a description is made of.
pub struct Parts<'a> {
    /// The model's sizes.
    pub model: &'a ModelConfig,
    /// Its quantization.
    pub weights: Weights,
    /// Protocol of requests that name none.
    pub default_protocol: Protocol,
    /// Policy of requests that name none.
    pub default_policy: Policy,
    /// Ring and instruction set.
    pub ring: &'a Ring,
    /// Compute threads.
    pub threads: usize,
    /// Whether chats can be rendered.
    pub has_chat_template: bool,
    /// "hardware"; "local" for a process that trusts whoever started it.
    pub attestation: &'static str,
    /// The evaluator, while one is connected and holds the model.
    pub evaluator: Box<dyn Fn() -> Option<v1::EvaluatorInfo> + Send + Sync>,
    /// The mask pool's figures, if there is one.
    pub lanes: Box<dyn Fn() -> Option<Stats> + Send + Sync>,
}

impl Description {
    /// Everything that does not change is written down once.
    pub fn new(parts: Parts<'_>) -> Self {
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (params, c) = (parts.ring.params(), parts.model);
        let ring = v1::RingParams {
            n: size(params.n()),
            log2_q: params.log2_q(),
            security_bits: params.security_bits(),
            params_id: params.id().0.to_vec().into(),
        };
        let fixed = v1::DescribeResponse {
            version: proto::VERSION.into(),
            model: c.name.clone(),
            architecture: c.architecture.to_string(),
            parameters: c.parameters,
            context_length: size(c.context),
            layers: size(c.layers),
            weights: parts.weights.name().into(),
            default_protocol: protocol(parts.default_protocol).into(),
            ring: Some(ring),
            evaluator: None,
            attestation: parts.attestation.into(),
            isa: parts.ring.isa().name().into(),
            threads: size(parts.threads),
            has_chat_template: parts.has_chat_template,
            lanes: None,
            default_policy: policy(parts.default_policy).into(),
        };
        Self { fixed, evaluator: parts.evaluator, lanes: parts.lanes }
    }

    /// The answer as of now.
    pub fn response(&self) -> v1::DescribeResponse {
        let lanes = (self.lanes)().map(|s| lanes(&s));
        v1::DescribeResponse { evaluator: (self.evaluator)(), lanes, ..self.fixed.clone() }
    }
}

fn lanes(s: &Stats) -> v1::Lanes {
    v1::Lanes {
        ready: s.ready as u64,
        capacity: s.capacity as u64,
        used: s.used,
        refill_ms_per_lane: s.per_lane(s.wall) / s.threads.max(1) as f64,
        enclave_ms_per_lane: s.per_lane(s.crypto),
        evaluator_ms_per_lane: s.per_lane(s.evaluator),
        bytes_up_per_lane: s.bytes_per_lane(s.up),
        bytes_down_per_lane: s.bytes_per_lane(s.down),
        memory_bytes: s.memory,
        trouble: s.trouble.clone().unwrap_or_default(),
    }
}

/// A protocol in the contract's words.
pub fn protocol(p: Protocol) -> v1::Protocol {
    match p {
        Protocol::Local => v1::Protocol::Local,
        Protocol::Direct => v1::Protocol::Direct,
        Protocol::Masked => v1::Protocol::Masked,
        Protocol::Auto => v1::Protocol::Auto,
    }
}

/// A policy in the contract's words.
pub fn policy(p: Policy) -> v1::Policy {
    match p {
        Policy::CpuTee => v1::Policy::CpuTee,
        Policy::HybridUnified => v1::Policy::HybridUnified,
        Policy::HybridPdSplit => v1::Policy::HybridPdSplit,
    }
}
