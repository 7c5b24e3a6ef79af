//! Nothing is sent twice, whoever is killed and whenever, and no token differs.

use anyhow::Context;
use e2e::{
    enclave::token,
    fixtures::{greedy, tiny},
    meddler::{Meddler, Path},
    stage::{LIMIT, Stage},
};
use proto::v1::{Protocol, generate_event::Event};
use tonic::Code;

/// Tokens of a request.
const TOKENS: u32 = 120;
/// Times that the evaluator is killed.
const KILLS: usize = 50;
/// Kills at which the client leaves while there is no evaluator.
const LEAVES: [usize; 3] = [5, 10, 45];
/// Tokens between two kills.
const BETWEEN: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_killed_evaluators_see_nothing_twice() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let mut evaluator = stage.evaluator(0, &["--threads", "1"]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let flags = ["--protocol", "masked", "--lanes", "64", "--retry-for", "60"];
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &flags).await?;
    let prompt = &model.prompts[0].prompt_ids;
    let undisturbed = enclave.generate(greedy(prompt, TOKENS, Protocol::Local)).await?.token_ids;

    let (mut kills, mut answered, mut failed, mut left, mut retries) = (0, 0, 0, 0, 0);
    while kills < KILLS {
        let protocol = if (answered + failed + left) % 3 == 2 { Protocol::Auto } else { Protocol::Masked };
        let (mut events, mut seen) = enclave.begun(greedy(prompt, TOKENS, protocol)).await?;
        let mut lived = 0;
        loop {
            match tokio::time::timeout(LIMIT, events.message()).await? {
                Ok(Some(event)) => {
                    if let Some(Event::Finished(finished)) = &event.event {
                        retries += finished.timing.context("timing")?.retries;
                    }
                    let fresh = token(&event);
                    lived += usize::from(fresh.is_some());
                    seen.extend(fresh);
                }
                Ok(None) => {
                    assert_eq!(seen, undisturbed, "after {kills} kills");
                    answered += 1;
                    break;
                }
                Err(status) => {
                    assert!(undisturbed.starts_with(&seen), "a token differs after {kills} kills");
                    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
                    assert!(status.message().contains("evaluator at https://127.0.0.1:"), "{status:?}");
                    failed += 1;
                    break;
                }
            }
            if lived >= BETWEEN && kills < KILLS {
                evaluator.daemon.kill();
                (kills, lived) = (kills + 1, 0);
                let leaves = LEAVES.contains(&kills);
                if leaves {
                    assert!(undisturbed.starts_with(&seen), "a token differs after {kills} kills");
                    left += 1;
                }
                evaluator = stage.evaluator(evaluator.port, &["--threads", "1"]).await?;
                if leaves {
                    break;
                }
            }
        }
    }
    let last = enclave.generate(greedy(prompt, TOKENS, Protocol::Masked)).await?;
    assert_eq!(last.token_ids, undisturbed, "after all kills");
    let sent = meddler.sent();
    println!("{kills} kills: {answered} answered, {failed} failed, {left} left, {retries} calls repeated; {sent:?}");
    assert!(retries > 0, "no call was disturbed");
    assert!(sent.vectors > 1000 && sent.rows > 1000, "{sent:?}");
    meddler.nothing_came_twice()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_killed_during_a_refill_starts_anew() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let path = model.path.to_string_lossy();
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let flags = ["--protocol", "masked", "--lanes", "64"];
    let prompt = &model.prompts[1].prompt_ids;

    // The first dies at its first refill, the second with a pool in use, at a later one.
    for used in [false, true] {
        let mut enclave = stage.enclave(&path, Some(meddler.port), &flags).await?;
        if used {
            enclave.lanes_until(|lanes| lanes.ready == 64).await?;
        }
        let before = meddler.sent();
        meddler.hold(Path::Bulk);
        let begun = if used { Some(enclave.begun(greedy(prompt, TOKENS, Protocol::Masked)).await?) } else { None };
        let deadline = tokio::time::Instant::now() + LIMIT;
        while (meddler.sent().rows, meddler.sent().public) == (before.rows, before.public) {
            anyhow::ensure!(tokio::time::Instant::now() < deadline, "no refill began");
            tokio::task::yield_now().await;
        }
        enclave.daemon.kill();
        drop(begun);
        meddler.behave();
        meddler.another_runtime();
    }

    let enclave = stage.enclave(&path, Some(meddler.port), &flags).await?;
    let local = enclave.generate(greedy(prompt, TOKENS, Protocol::Local)).await?.token_ids;
    let masked = enclave.generate(greedy(prompt, TOKENS, Protocol::Masked)).await?;
    assert_eq!((masked.token_ids, masked.masked_steps), (local, TOKENS - 1));
    assert!(enclave.lanes().await?.used >= 100);
    meddler.nothing_came_twice()
}
