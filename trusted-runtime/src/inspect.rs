//! `trusted-runtime inspect`: what a model holds, and how close its quantizations come to it.

use crate::{
    Error,
    linear::local::LocalLinear,
    model::{
        self, LoadedModel, Weights,
        fidelity::{self, Fidelity},
    },
    planner,
    progress::Progress,
};
use serde::Serialize;
use std::{
    fmt::{self, Write as _},
    io::Write as _,
    sync::Arc,
};

/// Everything that is printed.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: model::Summary,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fidelity: Vec<Measured>,
}

/// One quantization against f32, over one kind of text.
#[derive(Serialize)]
struct Measured {
    weights: &'static str,
    text: &'static str,
    agreement: f64,
    #[serde(flatten)]
    figures: Fidelity,
}

/// Prints a summary of `source` to stdout; with `with_fidelity` also how w8 and w16 compare with f32, over what
/// f32 writes itself and over a built-in text, which takes minutes.
///
/// # Errors
/// Those of loading and running the model; [`Error::Platform`] if stdout is closed.
pub fn run(source: &str, with_fidelity: bool, json: bool) -> Result<(), Error> {
    let progress = Progress::default();
    let summary = model::inspect(source, &progress.callback())?;
    let fidelity = if with_fidelity { measure(source, &progress)? } else { Vec::new() };
    let report = Report { summary, fidelity };
    let text = if json {
        serde_json::to_string_pretty(&report).map_err(|e| Error::Bug(format!("report: {e}")))?
    } else {
        report.to_string()
    };
    writeln!(std::io::stdout(), "{}", text.trim_end()).map_err(|e| Error::Platform(format!("stdout: {e}")))
}

fn measure(source: &str, progress: &Progress) -> Result<Vec<Measured>, Error> {
    let float = model::load_float(source, &progress.callback())?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = progress.callback();
    let prompts = fidelity::questions(&float.tokenizer, float.chat.as_ref())?;
    let text = float.tokenizer.encode(fidelity::TEXT);
    let kinds = [
        ("its own", fidelity::write(&float.model, &float.linear, &prompts, fidelity::WRITTEN, &report)?),
        ("built-in", fidelity::read(&float.model, &float.linear, &text, &report)?),
    ];
    let mut all = Vec::new();
    for weights in [Weights::W8, Weights::W16] {
        let LoadedModel { linears, .. } = model::load(source, weights, &report)?;
        let ring = planner::choose_ring(&linears)?;
        let plan = Arc::new(planner::plan(&ring, linears)?);
        let local = LocalLinear::new(ring, plan, threads)?;
        for (text, passages) in &kinds {
            let figures = fidelity::compare(&float.model, passages, &local, &report)?;
            all.push(Measured { weights: weights.name(), text, agreement: figures.agreement(), figures });
        }
    }
    Ok(all)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, c) = (&self.summary, &self.summary.config);
        let mut line = |name: &str, value: String| writeln!(f, "{name:<16}{value}");
        line("source", s.source.clone())?;
        line("name", c.name.clone())?;
        line("architecture", c.architecture.to_string())?;
        line("parameters", c.parameters.to_string())?;
        line("linear weights", format!("{} per token, the head included", s.linear_weights))?;
        line("blocks", format!("{} of width {}, feed-forward {}", c.layers, c.d_model, c.d_ff))?;
        line("attention", format!("{} heads, {} for keys and values, width {}", c.heads, c.kv_heads, c.head_dim))?;
        line("context", c.context.to_string())?;
        line("vocabulary", c.vocab.to_string())?;
        line("tokenizer", s.tokenizer.clone())?;
        line("chat template", if s.chat_template { "yes" } else { "no" }.into())?;
        let mut types = String::new();
        for t in &s.tensor_types {
            write!(types, "{}{} x {}", if types.is_empty() { "" } else { ", " }, t.tensors, t.name)?;
        }
        line("tensors", types)?;
        line("sha256", s.sha256.clone().unwrap_or_else(|| "none (synthetic)".into()))?;
        for Measured { weights, text, agreement, figures: x } in &self.fidelity {
            line(
                &format!("{weights} and f32"),
                format!(
                    "{text} text: {:.1} % same first choice ({} of {}), perplexity {:.3} against {:.3}, largest logit difference {:.3}",
                    100.0 * agreement,
                    x.agreements,
                    x.positions,
                    x.perplexity,
                    x.reference_perplexity,
                    x.max_logit_difference
                ),
            )?;
        }
        Ok(())
    }
}
