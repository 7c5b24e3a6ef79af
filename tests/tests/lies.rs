//! A hostile evaluator: whatever it sends becomes no token. What breaks the contract ends a call or is repeated; what
//! is lawful but wrong fails its check, raises the alarm, and puts the evaluator in quarantine.

use anyhow::Context;
use e2e::{
    enclave::Enclave,
    fixtures::{Tiny, greedy, tiny},
    meddler::{Meddler, Meddling, Path},
    stage::{Evaluator, LIMIT, Stage},
};
use proto::v1::Protocol;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Tokens of a request that outlasts the lanes of a full pool.
const LONG: u32 = 60;
/// Tokens of any other; the lanes that a pool above its low mark has are enough.
const SHORT: u32 = 2;

/// A runtime with masks, its evaluator, and a meddler between.
struct Play {
    model: Tiny,
    enclave: Arc<Enclave>,
    meddler: Meddler,
    honest: Vec<u32>,
    _evaluator: Evaluator,
    _stage: Stage,
}

impl Play {
    async fn new(config: &str) -> anyhow::Result<Self> {
        let model = tiny("llama");
        let stage = Stage::new()?;
        let evaluator = stage.evaluator(0, &[]).await?;
        let meddler = Meddler::start(&stage, &evaluator).await?;
        let file = stage.dir().join("play.toml");
        std::fs::write(&file, format!("metrics_listen = \"127.0.0.1:0\"\n{config}"))?;
        let flags = ["--config", &file.to_string_lossy(), "--protocol", "masked", "--lanes", "64"];
        let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &flags).await?;
        let request = greedy(&model.prompts[0].prompt_ids, LONG, Protocol::Local);
        let honest = enclave.generate(request).await?.token_ids;
        Ok(Self { model, enclave: Arc::new(enclave), meddler, honest, _evaluator: evaluator, _stage: stage })
    }

    async fn ids(&self, protocol: Protocol, tokens: u32) -> anyhow::Result<Vec<u32>> {
        let request = greedy(&self.model.prompts[0].prompt_ids, tokens, protocol);
        Ok(self.enclave.generate(request).await?.token_ids)
    }

    /// A request that must be answered rightly.
    async fn works(&self, protocol: Protocol, tokens: u32) -> anyhow::Result<()> {
        let found = self.ids(protocol, tokens).await.with_context(|| format!("{protocol:?}"))?;
        assert_eq!(found, self.honest[..tokens as usize], "{protocol:?}");
        Ok(())
    }

    /// A request that must fail, with its reason.
    async fn fails(&self, protocol: Protocol, tokens: u32) -> String {
        match self.ids(protocol, tokens).await {
            Ok(found) if found == self.honest[..tokens as usize] => panic!("{protocol:?}: answered, rightly"),
            Ok(_) => panic!("{protocol:?}: answered, WRONGLY"),
            Err(error) => error.to_string(),
        }
    }

    /// A request that may fail, with a reason, and may not be answered wrongly.
    async fn works_or_fails(&self, protocol: Protocol, tokens: u32) {
        match self.ids(protocol, tokens).await {
            Ok(found) => assert_eq!(found, self.honest[..tokens as usize], "{protocol:?}"),
            Err(error) => assert!(error.to_string().contains("evaluator"), "{protocol:?}: {error}"),
        }
    }

    /// The alarm counter of a check.
    async fn alarms(&self, check: &str) -> anyhow::Result<u64> {
        let metrics = self.enclave.metrics().await?;
        let name = format!("bifrost_runtime_forged_answers_total{{check=\"{check}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        Ok(line.with_context(|| format!("{name}is not in\n{metrics}"))?.parse()?)
    }
}

const HASTY: &str = "[evaluator]\ndeadline_seconds = 1\nretry_for_seconds = 1\n";

async fn breaches(path: Path, protocol: Protocol) -> anyhow::Result<()> {
    let play = Play::new(HASTY).await?;
    play.works(protocol, SHORT).await?;
    for what in Meddling::breaches(path) {
        // Once: the call is repeated with fresh randomness, or the request fails.
        let before = play.meddler.seen();
        play.meddler.meddle(path, what, 1);
        play.works_or_fails(protocol, SHORT).await;
        assert_eq!(play.meddler.seen().meddled, before.meddled + 1, "{what:?} was not tried");
        // Always: an error with a reason, and no token at all. An online job is over with its one answer, and
        // another one for it is lawful: it may have been on its way when the job was cancelled.
        play.meddler.meddle(path, what, u64::MAX);
        if (path, what) == (Path::Online, Meddling::Twice) {
            play.works(protocol, SHORT).await?;
            continue;
        }
        let error = play.fails(protocol, SHORT).await;
        assert!(error.contains("evaluator"), "{what:?} always: {error}");
        assert!(error.len() < 600 && !error.contains('\u{7}'), "{what:?}: the peer's words came through: {error:?}");
        println!("{what:?}: {error}");
        // The runtime lives on.
        play.meddler.behave();
        if protocol == Protocol::Masked {
            play.enclave.lanes_until(|lanes| lanes.ready > 16).await?;
        }
        play.works(protocol, SHORT).await.with_context(|| format!("after {what:?}"))?;
    }
    play.works(Protocol::Local, SHORT).await?;
    play.meddler.nothing_came_twice()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_breach_of_the_contract_in_direct_answers_becomes_a_token() -> anyhow::Result<()> {
    breaches(Path::Direct, Protocol::Direct).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_breach_of_the_contract_in_online_answers_becomes_a_token() -> anyhow::Result<()> {
    breaches(Path::Online, Protocol::Masked).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_breach_of_the_contract_in_bulk_answers_becomes_a_token() -> anyhow::Result<()> {
    let play = Play::new(HASTY).await?;
    for what in Meddling::breaches(Path::Bulk) {
        let before = play.meddler.seen();
        play.meddler.meddle(Path::Bulk, what, 1);
        while play.meddler.seen() == before {
            play.works_or_fails(Protocol::Masked, LONG).await;
        }
        play.enclave.lanes_until(|lanes| lanes.ready > 16 && lanes.trouble.is_empty()).await?;
        play.works(Protocol::Masked, 1).await.with_context(|| format!("after {what:?}"))?;
    }
    // A pool that cannot be filled says so; masked fails with the reason and auto goes on.
    play.meddler.meddle(Path::Bulk, Meddling::Silence, u64::MAX);
    let error = play.fails(Protocol::Masked, LONG).await;
    assert!(error.contains("evaluator at https://127.0.0.1:") && error.contains("masks for"), "{error}");
    let trouble = play.enclave.lanes_until(|lanes| !lanes.trouble.is_empty()).await?.trouble;
    assert!(trouble.contains("no masks within 1.0 s"), "{trouble}");
    play.works(Protocol::Auto, LONG).await?;
    play.meddler.behave();
    play.enclave.lanes_until(|lanes| lanes.ready > 16 && lanes.trouble.is_empty()).await?;
    play.works(Protocol::Masked, SHORT).await?;
    play.meddler.nothing_came_twice()
}

/// Long enough for four refused requests on a busy machine.
const QUARANTINE: &str = "[evaluator]\nquarantine_seconds = 3\n";

/// One lie on each of several jobs: the reason, the alarm, the quarantine and its end.
async fn lies(path: Path, protocol: Protocol, check: &str) -> anyhow::Result<()> {
    let play = Play::new(QUARANTINE).await?;
    let evaluator = format!("evaluator at https://127.0.0.1:{}", play.meddler.port);
    play.works(protocol, LONG).await?;
    for (alarms, (skip, what)) in [0, 7, 40].into_iter().zip(Meddling::LIES).enumerate() {
        assert_eq!(play.alarms(check).await?, alarms as u64, "before {what:?}");
        play.meddler.meddle_later(path, skip, what, 1);
        let error = play.fails(protocol, LONG).await;
        let (head, tail) = error.split_once(&format!("{evaluator} answers wrongly: ")).context(error.clone())?;
        let name = tail.strip_prefix(&format!("the {check} check of ")).and_then(|t| t.strip_suffix(" failed"));
        let name = name.with_context(|| format!("{what:?}: {error}"))?;
        assert!(head.len() < 40 && (name == "head" || name.starts_with("blk.")), "{what:?}: {error}");
        // Nobody speaks to it now; what the enclave can do alone it does.
        for delegating in [Protocol::Direct, Protocol::Masked, Protocol::Auto] {
            let error = play.fails(delegating, SHORT).await;
            assert!(error.contains(&evaluator) && error.contains("quarantine"), "{what:?}, {delegating:?}: {error}");
            assert!(error.contains(tail), "{what:?}, {delegating:?}: the reason is lost: {error}");
        }
        play.works(Protocol::Local, SHORT).await?;
        assert_eq!(play.alarms(check).await?, alarms as u64 + 1, "{what:?}");
        let matrix = format!("matrix={name} ");
        let logged = play.enclave.logged(&["ALARM", &evaluator["evaluator at ".len()..], &matrix, check]);
        assert!(logged.is_some(), "no line in the log says so");
        // The cooldown is over.
        play.enclave.connected().await?;
        play.works(protocol, LONG).await.with_context(|| format!("after {what:?}"))?;
    }
    play.meddler.nothing_came_twice()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lie_about_encrypted_activations_is_caught() -> anyhow::Result<()> {
    lies(Path::Direct, Protocol::Direct, "direct").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lie_about_padded_activations_is_caught() -> anyhow::Result<()> {
    lies(Path::Online, Protocol::Masked, "online").await
}

/// New challenges are drawn while requests run and lanes are in stock; nothing is made anew for it, and lies are found as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn challenges_are_drawn_anew_on_schedule() -> anyhow::Result<()> {
    let play = Play::new("[evaluator]\nrefresh_seconds = 1\nquarantine_seconds = 1\n").await?;
    let times = || play.enclave.count_logged("challenges drawn anew");
    for protocol in [Protocol::Masked, Protocol::Direct] {
        let (before, deadline) = (times(), Instant::now() + LIMIT);
        while times() < before + 2 {
            anyhow::ensure!(Instant::now() < deadline, "challenges stay the old ones");
            play.works(protocol, SHORT).await?;
            play.enclave.lanes_until(|lanes| lanes.ready > 16).await?;
        }
    }
    for check in ["direct", "online", "bulk"] {
        assert_eq!(play.alarms(check).await?, 0, "{check}");
    }
    play.meddler.meddle(Path::Online, Meddling::Flipped, 1);
    let error = play.fails(Protocol::Masked, SHORT).await;
    assert!(error.contains("the online check of "), "{error}");
    play.meddler.nothing_came_twice()
}

/// Masks are made beside the requests: whether one of these notices depends on the lanes it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lie_about_encrypted_masks_is_caught() -> anyhow::Result<()> {
    let play = Arc::new(Play::new(QUARANTINE).await?);
    for (alarms, (skip, what)) in [0, 3, 11].into_iter().zip(Meddling::LIES).enumerate() {
        play.works(Protocol::Masked, LONG).await?;
        play.meddler.meddle_later(Path::Bulk, skip, what, 1);
        let busy = tokio::spawn({
            let play = play.clone();
            async move {
                while play.alarms("bulk").await? == alarms as u64 {
                    play.works_or_fails(Protocol::Masked, LONG).await;
                }
                anyhow::Ok(())
            }
        });
        while play.alarms("bulk").await? == alarms as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = play.fails(Protocol::Direct, SHORT).await;
        assert!(error.contains("quarantine: answers wrongly: the bulk check of "), "{what:?}: {error}");
        assert_eq!(play.alarms("bulk").await?, alarms as u64 + 1, "{what:?}");
        assert!(play.enclave.logged(&["ALARM", "matrix=", "bulk"]).is_some(), "no line in the log says so");
        busy.await??;
        play.enclave.connected().await?;
        play.works(Protocol::Masked, LONG).await.with_context(|| format!("after {what:?}"))?;
    }
    play.meddler.nothing_came_twice()
}
