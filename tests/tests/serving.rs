//! Many requests at once, little memory for keys and values, pages that are sealed, several evaluators: the tokens stay.

use anyhow::Context;
use e2e::{
    enclave::{Enclave, token},
    fixtures::{Tiny, greedy, tiny},
    stage::{LIMIT, Stage},
};
use proto::v1::{self, Policy, Protocol, generate_event::Event};

/// Tokens of an answer.
const TOKENS: u32 = 40;

/// Requests of different lengths with a common beginning: parts of the longest prompt, some of them twice.
fn requests(model: &Tiny, protocol: Protocol) -> Vec<v1::GenerateRequest> {
    let longest = model.prompts.iter().map(|p| &p.prompt_ids).max_by_key(|ids| ids.len()).expect("prompts");
    let long: Vec<u32> = longest.iter().copied().cycle().take(36).collect();
    let one = |(i, n): (u32, usize)| greedy(&long[..n], TOKENS - i, protocol);
    (0..).zip([36, 1, 33, 36, 20, 17, 35, 5]).map(one).collect()
}

async fn alone(enclave: &Enclave, requests: &[v1::GenerateRequest]) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut all = Vec::new();
    for request in requests {
        all.push(enclave.generate(request.clone()).await?.token_ids);
    }
    Ok(all)
}

async fn together(enclave: &Enclave, requests: &[v1::GenerateRequest]) -> anyhow::Result<Vec<Vec<u32>>> {
    let answers = requests.iter().map(|request| enclave.generate(request.clone()));
    let answers = futures::future::try_join_all(answers).await?;
    Ok(answers.into_iter().map(|a| a.token_ids).collect())
}

fn figure(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|v| v.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn company_pages_and_policies_change_no_token() -> anyhow::Result<()> {
    for name in ["llama", "gpt2"] {
        let model = tiny(name);
        let path = model.path.to_string_lossy();
        let stage = Stage::new()?;
        let plain = stage.enclave(&path, None, &["--kv-memory", "64MiB"]).await?;
        let expected = alone(&plain, &requests(&model, Protocol::Local)).await?;
        assert_eq!(together(&plain, &requests(&model, Protocol::Local)).await?, expected, "{name}: in company");

        let evaluator = stage.evaluator(0, &[]).await?;
        let sealed = stage.dir().join(format!("{name}.pages"));
        let sealed = sealed.to_string_lossy();
        // Some pages for eight requests of up to five pages each.
        let little = ["--kv-memory", if name == "llama" { "100KiB" } else { "140KiB" }];
        let flags = ["--kv-backend", "sealed", "--kv-file", &sealed, "--metrics-listen", "127.0.0.1:0"];
        let flags = [&flags[..], &little, &["--protocol", "masked", "--lanes", "256"]].concat();
        let enclave = stage.enclave(&path, Some(evaluator.port), &flags).await?;
        enclave.connected().await?;
        for protocol in [Protocol::Local, Protocol::Direct, Protocol::Masked] {
            let found = together(&enclave, &requests(&model, protocol)).await?;
            assert_eq!(found, expected, "{name}: {protocol:?}, sealed, few pages");
        }
        let mut policies = requests(&model, Protocol::Direct);
        for (request, policy) in
            policies.iter_mut().zip([Policy::CpuTee, Policy::HybridPdSplit, Policy::HybridUnified].into_iter().cycle())
        {
            request.set_policy(policy);
        }
        assert_eq!(together(&enclave, &policies).await?, expected, "{name}: policies");
        let metrics = enclave.metrics().await?;
        let sum = |name: &str| -> f64 {
            ["local", "direct", "masked"].iter().map(|p| figure(&metrics, &format!("{name}{{protocol=\"{p}\"}}"))).sum()
        };
        assert!(sum("bifrost_runtime_num_preemptions_total") > 0.0, "{name}: pages never ran out\n{metrics}");
        assert!(sum("bifrost_runtime_prefix_cache_hits_total") > 0.0, "{name}: nothing was shared\n{metrics}");
        let shared = figure(&metrics, "bifrost_runtime_step_sequences_sum{protocol=\"local\"}")
            / figure(&metrics, "bifrost_runtime_step_sequences_count{protocol=\"local\"}");
        assert!(shared > 1.0, "{name}: no pass served two sequences\n{metrics}");

        let mut refused = requests(&model, Protocol::Local).remove(0);
        refused.set_policy(Policy::PureFhe);
        let error = enclave.generate(refused).await.err().context("pure_fhe is not built")?.to_string();
        assert!(error.contains("policy is pure_fhe, which is not built yet"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hardened_calls_and_answers_change_no_token() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let config = stage.dir().join("hardened.toml");
    std::fs::write(&config, "[hardening]\nbatch_shapes = \"4,16\"\nanswer_multiple = 16\ntoken_interval_ms = 1\n")?;
    let config = config.to_string_lossy();
    let flags = ["--config", &config];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &flags).await?;
    let expected = alone(&enclave, &requests(&model, Protocol::Local)).await?;
    assert_eq!(together(&enclave, &requests(&model, Protocol::Direct)).await?, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_evaluators_share_the_rows_and_one_takes_over() -> anyhow::Result<()> {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let stage = Stage::new()?;
    let first = stage.evaluator(0, &["--threads", "1"]).await?;
    let mut second = stage.evaluator(0, &["--threads", "1"]).await?;
    let flags = ["--protocol", "masked", "--lanes", "256", "--retry-for", "60"];
    let enclave = stage.enclave_over(&path, &[first.port, second.port], &flags).await?;
    let info = enclave.connected().await?;
    let ports = [first.port, second.port].map(|p| p.to_string());
    assert!(ports.iter().all(|p| info.endpoint.contains(p)), "{info:?}");
    let expected = alone(&enclave, &requests(&model, Protocol::Local)).await?;
    for protocol in [Protocol::Direct, Protocol::Masked] {
        assert_eq!(together(&enclave, &requests(&model, protocol)).await?, expected, "{protocol:?}");
    }
    let ask = greedy(&model.prompts[0].prompt_ids, 120, Protocol::Direct);
    let undisturbed = enclave.generate(v1::GenerateRequest { protocol: Protocol::Local.into(), ..ask.clone() }).await?;
    let (mut events, mut seen) = enclave.begun(ask).await?;
    second.daemon.kill();
    let mut finished = false;
    while let Some(event) = tokio::time::timeout(LIMIT, events.message()).await?? {
        finished |= matches!(event.event, Some(Event::Finished(_)));
        seen.extend(token(&event));
    }
    assert!(finished && seen == undisturbed.token_ids, "a token differs after one of two evaluators was killed");
    for protocol in [Protocol::Direct, Protocol::Masked] {
        assert_eq!(
            together(&enclave, &requests(&model, protocol)).await?,
            expected,
            "{protocol:?}, one evaluator left"
        );
    }
    assert!(enclave.logged(&["turning to another evaluator"]).is_some());
    let info = enclave.connected().await?;
    assert!(!info.endpoint.contains(&ports[1]), "{info:?}");
    Ok(())
}
