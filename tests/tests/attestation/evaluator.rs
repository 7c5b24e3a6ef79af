//! What an evaluator is sent, seen where TLS has ended: by every protocol, no activation in any form.

use super::{
    POLL, PROMPT,
    search::{Inside, Search, forms, grpc, written},
};
use anyhow::ensure;
use e2e::{
    fixtures::{chatty, greedy},
    stage::{LIMIT, Stage},
};
use proto::v1::Protocol;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// Writes down every byte that is sent through it, either way.
struct Relay {
    port: u16,
    /// Of each direction of each connection.
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Relay {
    async fn start(behind: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, taken) = (listener.local_addr()?.port(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let log = taken.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", behind)).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(from_near, to_far, log.clone()));
                tokio::spawn(pass(from_far, to_near, log.clone()));
            }
        });
        Ok(Self { port, taken })
    }

    /// How many of `needles` were sent, however often.
    fn sent(&self, needles: &[Vec<u8>]) -> anyhow::Result<usize> {
        let search = Search::of(needles.to_vec())?;
        let taken = lock(&self.taken);
        Ok(taken.iter().flat_map(|bytes| search.all(bytes)).collect::<BTreeSet<_>>().len())
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, log: Arc<Mutex<Vec<Vec<u8>>>>) {
    let place = {
        let mut log = lock(&log);
        log.push(Vec::new());
        log.len() - 1
    };
    let (mut bytes, mut open) = (vec![0; 1 << 16], true);
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        lock(&log)[place].extend_from_slice(&bytes[..n]);
        // What an end that has hung up no longer takes was sent all the same.
        open = open && to.write_all(&bytes[..n]).await.is_ok();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_evaluator_is_sent_holds_no_activation() -> anyhow::Result<()> {
    let stage = Stage::new()?;
    let model = chatty("llama", &stage.dir());
    let evaluator = stage.evaluator(0, &["--danger-plaintext", "--threads", "2"]).await?;
    let relay = Relay::start(evaluator.port).await?;
    let endpoint = format!("http://127.0.0.1:{}", relay.port);
    let towards = ["--evaluator", &endpoint, "--evaluator-danger-plaintext"];
    let args = [&towards[..], &["--protocol", "masked", "--lanes", "256", "--threads", "2"]].concat();
    let enclave = stage.enclave(&model.display().to_string(), None, &args).await?;
    enclave.connected().await?;
    let prompt: Vec<u32> =
        Inside::of(&model, PROMPT, &[])?.prompt.into_iter().map(u32::try_from).collect::<Result<_, _>>()?;
    let mut answers = Vec::new();
    for protocol in [Protocol::Masked, Protocol::Auto, Protocol::Direct] {
        answers.push(enclave.generate(greedy(&prompt, 24, protocol)).await?.token_ids);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let answer: Vec<u64> = answers[0].iter().map(|id| u64::from(*id)).collect();
    let inside = Inside::of(&model, PROMPT, &answer)?;

    let ids = [written(&inside.prompt)?, written(&answer)?].concat();
    let secrets = [inside.activations, forms(PROMPT.as_bytes()), ids].concat();
    assert_eq!(relay.sent(&secrets)?, 0, "in the clear");

    // What is in the clear is found: words of the contract, weights, and then every secret that is sent.
    assert_eq!(relay.sent(&grpc())?, 3);
    let weights = relay.sent(&inside.weights)?;
    // Those that lie across two messages are not.
    assert!(weights > inside.weights.len() / 2, "{weights} of {} rows of weights", inside.weights.len());
    let mut leak = TcpStream::connect(("127.0.0.1", relay.port)).await?;
    leak.write_all(&secrets.concat()).await?;
    leak.shutdown().await?;
    let (deadline, all) = (Instant::now() + LIMIT, secrets.iter().collect::<BTreeSet<_>>().len());
    loop {
        match relay.sent(&secrets)? {
            found if found == all => return Ok(()),
            found => ensure!(Instant::now() < deadline, "{found} of {all} are found"),
        }
        tokio::time::sleep(POLL).await;
    }
}
