//! The main job: the same tokens whether linear layers run encrypted on the evaluator or in the enclave.

use client::{certificates::Role, inference::Runtime};
use e2e::{
    enclave::{Enclave, token},
    fixtures::{self, Tiny, greedy, tiny},
    meddler::{Meddler, Path},
    stage::{LIMIT, Stage},
};
use proto::v1::{self, Protocol, generate_event::Event};

/// Greedy ids of every prompt.
async fn answers(enclave: &Enclave, model: &Tiny, protocol: Protocol) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut all = Vec::new();
    for prompt in &model.prompts {
        let tokens = u32::try_from(prompt.f64_ids.len())?;
        let answer = enclave.generate(greedy(&prompt.prompt_ids, tokens, protocol)).await?;
        assert_eq!(answer.protocol, protocol);
        assert_eq!(answer.prompt_tokens as usize, prompt.prompt_ids.len());
        assert_eq!((answer.token_ids.len(), answer.finish_reason), (prompt.f64_ids.len(), "length"));
        let (up, down) = (answer.timing.bytes_up_per_token, answer.timing.bytes_down_per_token);
        let delegates = protocol != Protocol::Local;
        assert_eq!((up > 0, down > 0), (delegates, delegates), "{up} {down}");
        let (masked, direct) = (answer.masked_steps, answer.direct_steps);
        match protocol {
            Protocol::Masked => assert_eq!((masked, direct), (tokens - 1, 0)),
            Protocol::Direct => assert_eq!((masked, direct), (0, tokens - 1)),
            Protocol::Auto => assert_eq!(masked + direct, tokens - 1),
            _ => assert_eq!((masked, direct), (0, 0)),
        }
        all.push(answer.token_ids);
    }
    Ok(all)
}

/// Every combination of threads and residency gives the same tokens by every protocol, on all prompts.
async fn same_tokens_on_every_path(model: &str, weights: &str) -> anyhow::Result<()> {
    let model = tiny(model);
    let path = model.path.to_string_lossy();
    let mut known: Option<Vec<Vec<u32>>> = None;
    // Masks need the weights as int8.
    let masked = &[Protocol::Direct, Protocol::Masked, Protocol::Auto][..];
    for (threads, residency, serves, delegating) in [
        ("1", "pinned", "direct", &masked[..1]),
        ("2", "fallback", "masked", masked),
        ("2", "pinned", "direct", &masked[..1]),
        ("1", "fallback", "auto", masked),
    ] {
        let stage = Stage::new()?;
        let evaluator = stage.evaluator(0, &["--threads", threads]).await?;
        let flags = ["--weights", weights, "--threads", threads, "--residency", residency, "--protocol", serves];
        let flags = [&flags[..], &["--lanes", "64"]].concat();
        let enclave = stage.enclave(&path, Some(evaluator.port), &flags).await?;
        let info = enclave.connected().await?;
        assert_eq!(info.pinned_layers > 0, residency == "pinned", "{info:?}");
        assert_eq!(info.fallback_layers > 0, residency == "fallback", "{info:?}");

        let what = format!("{} {weights}, {threads} threads, {residency}", model.name);
        let local = answers(&enclave, &model, Protocol::Local).await?;
        for &protocol in delegating {
            let found = answers(&enclave, &model, protocol).await?;
            assert_eq!(found, local, "{what}: {protocol:?} and local differ");
        }
        assert_eq!(known.get_or_insert(local.clone()), &local, "{what}: differs from other threads");
    }
    if weights == "w16" {
        let f64_ids: Vec<_> = model.prompts.iter().map(|p| p.f64_ids.clone()).collect();
        assert!(model.prompts.iter().all(|p| p.min_margin > 5e-3), "the references are too close to call");
        assert_eq!(known, Some(f64_ids), "{}: w16 differs from the f64 reference", model.name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpt2_w8() -> anyhow::Result<()> {
    same_tokens_on_every_path("gpt2", "w8").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpt2_w16() -> anyhow::Result<()> {
    same_tokens_on_every_path("gpt2", "w16").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_w8() -> anyhow::Result<()> {
    same_tokens_on_every_path("llama", "w8").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_w16() -> anyhow::Result<()> {
    same_tokens_on_every_path("llama", "w16").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_gives_the_same_tokens_on_every_path() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let flags = ["--protocol", "masked", "--lanes", "64"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &flags).await?;
    let ask = async |seed: u64, protocol: Protocol| {
        let sampling = v1::Sampling {
            temperature: Some(1.3),
            top_k: Some(50),
            top_p: Some(0.95),
            min_p: Some(0.01),
            repetition_penalty: Some(1.1),
            seed: Some(seed),
            ..Default::default()
        };
        let request =
            v1::GenerateRequest { sampling: Some(sampling), ..greedy(&model.prompts[0].prompt_ids, 24, protocol) };
        enclave.generate(request).await.map(|a| a.token_ids)
    };
    let first = ask(7, Protocol::Direct).await?;
    assert_eq!(ask(7, Protocol::Local).await?, first);
    assert_eq!(ask(7, Protocol::Direct).await?, first, "the same seed again");
    assert_eq!(ask(7, Protocol::Masked).await?, first, "masked");
    assert_ne!(ask(8, Protocol::Local).await?, first, "another seed");
    assert_ne!(enclave.generate(greedy(&model.prompts[0].prompt_ids, 24, Protocol::Local)).await?.token_ids, first);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_the_same_time_do_not_disturb_each_other() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &[]).await?;
    let alone = answers(&enclave, &model, Protocol::Local).await?;
    let together = model.prompts.iter().enumerate().flat_map(|(i, prompt)| {
        [Protocol::Direct, Protocol::Local].map(|protocol| (i, greedy(&prompt.prompt_ids, 16, protocol)))
    });
    let enclave = &enclave;
    let runs = together.map(|(i, request)| async move { enclave.generate(request).await.map(|a| (i, a.token_ids)) });
    for (i, ids) in futures::future::try_join_all(runs).await? {
        assert_eq!(ids, alone[i], "prompt {i}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_masked_requests_of_mixed_lengths_give_the_tokens_of_one_at_a_time() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let flags = ["--protocol", "masked", "--lanes", "64", "--max-running", "8"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &flags).await?;
    // From one token to two chunks and a half of the longest prompt.
    let long: Vec<u32> = model.prompts.iter().flat_map(|p| p.prompt_ids.iter().copied()).collect();
    let requests = [(1, 24), (2, 9), (7, 16), (31, 5), (32, 12), (33, 3), (57, 8), (80, 2)];
    let request = |(prompt, tokens): (usize, u32)| greedy(&long[..prompt], tokens, Protocol::Masked);
    let mut alone = Vec::new();
    for (prompt, tokens) in requests {
        let local = enclave.generate(greedy(&long[..prompt], tokens, Protocol::Local)).await?.token_ids;
        let masked = enclave.generate(request((prompt, tokens))).await?.token_ids;
        assert_eq!(masked, local, "{prompt} tokens of prompt, alone");
        alone.push(local);
    }
    let together = futures::future::try_join_all(requests.map(|r| enclave.generate(request(r)))).await?;
    for ((found, expected), (prompt, tokens)) in together.iter().zip(&alone).zip(requests) {
        assert_eq!(&found.token_ids, expected, "{prompt} tokens of prompt, among eight");
        assert_eq!((found.masked_steps, found.direct_steps), (tokens - 1, 0));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_answers_at_once_and_goes_on_masked() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    meddler.hold(Path::Bulk);
    let flags = ["--protocol", "auto", "--lanes", "64"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &flags).await?;
    let prompt = &model.prompts[0].prompt_ids;
    let local = enclave.generate(greedy(prompt, 16, Protocol::Local)).await?.token_ids;
    let at_once = enclave.generate(greedy(prompt, 16, Protocol::Auto)).await?;
    assert_eq!((at_once.token_ids, at_once.masked_steps, at_once.direct_steps), (local.clone(), 0, 15));
    let wait = enclave.lanes().await?;
    assert_eq!((wait.ready, wait.used), (0, 0), "{wait:?}");

    meddler.behave();
    enclave.lanes_until(|lanes| lanes.ready == 64).await?;
    let later = enclave.generate(greedy(prompt, 16, Protocol::Auto)).await?;
    assert_eq!((later.token_ids, later.masked_steps, later.direct_steps), (local, 15, 0));
    assert!(later.timing.round_trips_per_token > 0.0 && later.timing.verify_ms > 0.0, "{:?}", later.timing);
    let pool = enclave.lanes().await?;
    assert!(pool.used >= 30 && pool.refill_ms_per_lane > 0.0 && pool.bytes_up_per_lane > 0, "{pool:?}");

    // One request that outlasts the lanes that are left: both kinds of steps, the same tokens.
    let long = enclave.generate(greedy(prompt, 100, Protocol::Local)).await?.token_ids;
    meddler.hold(Path::Bulk);
    let both = enclave.generate(greedy(prompt, 100, Protocol::Auto)).await?;
    meddler.behave();
    assert_eq!(both.token_ids, long);
    assert!(
        both.masked_steps > 0 && both.direct_steps > 0,
        "{} masked, {} direct",
        both.masked_steps,
        both.direct_steps
    );
    assert_eq!(both.masked_steps + both.direct_steps, 99);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_daemons_refuse_strangers_and_leave_when_asked() -> anyhow::Result<()> {
    let model = tiny("llama");
    let (stage, other) = (Stage::new()?, Stage::new()?);
    let mut evaluator = stage.evaluator(0, &[]).await?;
    let mut enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &[]).await?;
    enclave.connected().await?;
    for port in [evaluator.port, enclave.daemon.port(LIMIT).await?] {
        // The stranger trusts the right authority and shows a certificate of another one.
        let mut stranger = other.address(port, Role::Client);
        stranger.ca = stage.address(port, Role::Client).ca;
        let refused = match Runtime::connect(&stranger).await {
            Ok(connection) => connection.describe().await.is_err() && connection.serving().await.is_err(),
            Err(_) => true,
        };
        assert!(refused, "port {port} served a stranger");
        // And a daemon of another authority is not believed.
        let mut fooled = stage.address(port, Role::Client);
        fooled.ca = other.address(port, Role::Client).ca;
        assert!(Runtime::connect(&fooled).await.is_err(), "port {port} was believed without reason");
    }
    for daemon in [&mut enclave.daemon, &mut evaluator.daemon] {
        daemon.terminate();
        let status = daemon.wait(LIMIT).await?;
        assert!(status.success(), "{} left with {status}: {:?}", daemon.name(), daemon.last_lines());
    }
    Ok(())
}

/// The lanes come while a request runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_goes_over_to_masks_within_a_request() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    meddler.hold(Path::Bulk);
    let flags = ["--protocol", "auto", "--lanes", "64"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &flags).await?;
    let prompt = &model.prompts[0].prompt_ids;
    let long = enclave.generate(greedy(prompt, 200, Protocol::Local)).await?.token_ids;
    let (mut events, mut seen) = enclave.begun(greedy(prompt, 200, Protocol::Auto)).await?;
    meddler.behave();
    let mut steps = (0, 0);
    while let Some(event) = tokio::time::timeout(LIMIT, events.message()).await?? {
        seen.extend(token(&event));
        if let Some(Event::Finished(finished)) = event.event {
            steps = (finished.masked_steps, finished.direct_steps);
        }
    }
    assert_eq!(seen, long);
    assert!(steps.0 > 0 && steps.1 > 2, "{steps:?}: it did not go over to masks");
    Ok(())
}

/// A pool of the default size: each batch has as many lanes as the ring has coefficients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_batches_give_the_same_tokens_and_repeat_nothing() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let flags = ["--protocol", "masked", "--lanes", "2048"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &flags).await?;
    let prompt = &model.prompts[0].prompt_ids;
    let local = enclave.generate(greedy(prompt, 100, Protocol::Local)).await?.token_ids;
    // Below a quarter of the pool it is filled again.
    for _ in 0..16 {
        assert_eq!(enclave.generate(greedy(prompt, 100, Protocol::Masked)).await?.token_ids, local);
    }
    enclave.lanes_until(|lanes| lanes.ready > 1024).await?;
    let sent = meddler.sent();
    assert!(sent.rows > sent.public, "{sent:?}: two batches, and one companion");
    meddler.nothing_came_twice()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smollm2_gives_the_same_tokens_encrypted() -> anyhow::Result<()> {
    let Some(model) = fixtures::smollm2() else { return Ok(()) };
    let (direct, both) = (&[Protocol::Direct][..], &[Protocol::Masked, Protocol::Direct][..]);
    // Residency, bytes per weight at most by its own count, weights, threads, prompts, tokens; w16 holds two planes.
    let mut cases = vec![
        ("pinned", 9.0, "w8", "2", 3, 4, direct),
        ("fallback", 1.3, "w8", "1", 1, 4, both),
        ("fallback", 2.6, "w16", "2", 1, 2, both),
    ];
    if std::env::var_os("BIFROST_TEST_LONG").is_some_and(|v| v == "1") {
        for (residency, per_weight) in [("pinned", 9.0), ("fallback", 1.3)] {
            for (weights, planes, threads) in [("w8", 1.0, "1"), ("w8", 1.0, "2"), ("w16", 2.0, "1"), ("w16", 2.0, "2")]
            {
                let delegating = if residency == "fallback" { both } else { direct };
                cases.push((residency, planes * per_weight, weights, threads, 4, 32, delegating));
            }
        }
    }
    for (residency, bytes_per_weight, weights, threads, prompts, tokens, delegating) in cases {
        let start = std::time::Instant::now();
        let stage = Stage::new()?;
        let evaluator = stage.evaluator(0, &["--threads", threads]).await?;
        let flags = ["--residency", residency, "--weights", weights, "--threads", threads];
        let masked = delegating.contains(&Protocol::Masked);
        let protocol = if masked { "masked" } else { "direct" };
        // Making masks for a model of this size takes a small machine longer than a request usually waits.
        let flags = [&flags[..], &["--protocol", protocol, "--lanes", "64", "--retry-for", "600"]].concat();
        let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &flags).await?;
        let info = enclave.connected().await?;
        assert!(
            info.bytes_per_weight <= bytes_per_weight,
            "{residency} {weights}: {} bytes per weight",
            info.bytes_per_weight
        );
        for prompt in &model.prompts[..prompts] {
            let local = enclave.generate(greedy(prompt, tokens, Protocol::Local)).await?;
            for &protocol in delegating {
                let found = enclave.generate(greedy(prompt, tokens, protocol)).await?;
                assert_eq!(found.token_ids, local.token_ids, "{protocol:?}, {residency} {weights}, {threads} threads");
            }
        }
        println!(
            "{residency} {weights}, {threads} threads, {prompts} prompts, {tokens} tokens, {delegating:?}: identical, {:.0} s",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
