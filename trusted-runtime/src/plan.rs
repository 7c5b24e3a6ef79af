//! `trusted-runtime plan`: who computes what, what it should cost, and with `run` what it does cost.

mod report;
mod run;

use crate::{
    Error,
    config::{self, Config, WeightsName},
    engine::{Protocol, runner::Site},
    linear::link::EvaluatorConfig,
    model::{self, LoadedModel, Weights},
    planner::{
        self,
        calibration::{self, HostPair, Setup},
        choice::{self, Pricing, Wanted},
        costs::Costs,
    },
    progress::Progress,
};
use kernels::Ring;
use report::Report;
use std::{io::Write as _, sync::Arc, time::Instant};
use tokio::runtime::Handle;

/// What is asked for beside the configuration.
pub struct Options {
    /// Bytes of the evaluator's memory, or a size with a unit; none for what it says.
    pub budget: Option<String>,
    /// Positions of the prompt, which the decode step finds in its cache.
    pub positions: usize,
    /// Whether groups may stay inside.
    pub allow_enclave: bool,
    /// Measure costs although they are known.
    pub recalibrate: bool,
    /// Decode some tokens and say what they cost.
    pub run: bool,
    /// Print one JSON object.
    pub json: bool,
}

/// Plans the configured model and prints the plan. Blocks; `handle` is a runtime with threads.
///
/// # Errors
/// Those of loading the model and of reaching the evaluator; [`Error::Evaluator`] with the figures if the model does not
/// fit its memory; [`Error::Platform`] if stdout is closed.
pub fn run(config: &Config, options: &Options, handle: &Handle) -> Result<(), Error> {
    let budget = options.budget.as_deref().map(|text| {
        config::size(text).ok_or_else(|| Error::Config(format!("--budget is {text:?}, expected bytes or e.g. 2GiB")))
    });
    let (budget, policy) = (budget.transpose()?, config.policy()?);
    let protocol = config.default_protocol();
    let evaluator = config.evaluator()?.filter(|_| protocol != Protocol::Local);
    let weights = match config.model.weights {
        WeightsName::W8 => Weights::W8,
        WeightsName::W16 => Weights::W16,
    };
    let progress = Progress::default();
    let LoadedModel { model, tokenizer, linears, .. } =
        model::load(&config.model.source, weights, &progress.callback())?;
    let ring = planner::choose_ring(&linears)?;
    let plan = Arc::new(planner::plan(&ring, linears)?);
    if options.positions + run::TOKENS > model.config().context {
        let context = model.config().context;
        let what = format!("--positions is {}, the model's context is {context}", options.positions);
        return Err(Error::Config(format!("{what} and a run makes {} more", run::TOKENS)));
    }

    let threads = config.compute_threads();
    let masked = protocol.uses_masks();
    let setup = Setup { ring: &ring, threads, evaluator: evaluator.as_ref(), handle: handle.clone(), masked };
    let Priced { costs, cached, memory } = priced(&setup, options.recalibrate, budget)?;

    let began = Instant::now();
    let residency = evaluator.as_ref().map(|e| e.residency).unwrap_or_default();
    let wanted = Wanted { protocol, policy, residency, budget: memory, allow_enclave: options.allow_enclave };
    let pricing = Pricing { ring: &ring, plan: &plan, config: model.config(), weights, costs: &costs };
    let step = choice::decode(&pricing, &wanted, options.positions)?;
    let at = |site| choice::prompt(&pricing, &wanted, site, options.positions).map(|p| p.total().total_s());
    let delegated = if costs.delegated.is_some() { Some(at(Site::Evaluator)?) } else { None };
    let (inside, sooner) = (at(Site::Enclave)?, choice::prefill_site(&pricing, &wanted, options.positions)?);
    let planned = began.elapsed();

    let mut report = Report::new(&pricing, &wanted, &step);
    report.prompt(options.positions, inside, delegated, sooner);
    report.calibration(cached, &costs, planned);
    if options.run {
        let decode = run::Decode {
            model: &model,
            tokenizer: &tokenizer,
            ring: &ring,
            plan: &plan,
            step: &step,
            threads,
            positions: options.positions,
        };
        let evaluator = evaluator.map(|e| EvaluatorConfig { budget: Some(memory), ..e });
        report.measured(&decode.run(evaluator.as_ref(), protocol, &config.pool()?, handle)?);
    }
    let text = if options.json {
        serde_json::to_string_pretty(&report).map_err(|e| Error::Bug(format!("plan: {e}")))?
    } else {
        report.to_string()
    };
    writeln!(std::io::stdout(), "{}", text.trim_end()).map_err(|e| Error::Platform(format!("stdout: {e}")))
}

/// What a plan needs to know of the machines.
struct Priced {
    costs: Costs,
    /// Whether the costs are from an earlier time.
    cached: bool,
    /// Bytes of the evaluator that may be used.
    memory: u64,
}

/// Recalls or measures the costs, and asks the evaluator for its memory.
fn priced(setup: &Setup<'_>, recalibrate: bool, budget: Option<u64>) -> Result<Priced, Error> {
    let (mut memory, mut other) = (budget.unwrap_or(u64::MAX), String::new());
    if let Some(evaluator) = setup.evaluator {
        let probe = calibration::probe(setup, evaluator)?;
        memory = memory.min(probe.memory_budget()?);
        let (backend, isa) = probe.describe().map(|i| (i.backend, i.isa)).unwrap_or_default();
        let host = evaluator.endpoint.rsplit_once(':').map_or(evaluator.endpoint.as_str(), |(host, _)| host);
        // Costs without masked ones are not those of another protocol.
        other = format!("{host} {backend} {isa} masked={}", setup.masked);
    }
    let hosts = hosts(setup.ring, setup.threads, other);
    if let Some(costs) = hosts.recall().filter(|_| !recalibrate) {
        return Ok(Priced { costs, cached: true, memory });
    }
    let costs = calibration::calibrate(setup)?;
    hosts.remember(&costs);
    Ok(Priced { costs, cached: false, memory })
}

fn hosts(ring: &Ring, threads: usize, evaluator: String) -> HostPair {
    HostPair {
        machine: calibration::machine(),
        evaluator,
        version: proto::VERSION.into(),
        isa: ring.isa().name().into(),
        threads,
        q_bits: ring.params().bits(),
    }
}
