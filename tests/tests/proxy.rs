//! `bifrost proxy`: the OpenAI API, as its clients see it, over the real binaries.

use anyhow::Context;
use e2e::{
    enclave::Enclave,
    fixtures::{chatty, tiny},
    http::{exchange, post, send},
    meddler::{Meddler, Path},
    stage::{LIMIT, Proxy, Stage},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A model that takes long enough to be disturbed.
const SLOW: &str = "synthetic:gpt2-124m";
const MODEL: &str = "tiny";
/// SHA-256 of "hello".
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

struct Served {
    _stage: Stage,
    enclave: Enclave,
    proxy: Proxy,
}

/// A proxy in front of a runtime that serves `model`, the tiny one with a chat template if there is none.
async fn served(model: Option<&str>, config: &str, args: &[&str]) -> anyhow::Result<Served> {
    let stage = Stage::new()?;
    let chatty = chatty("llama", &stage.dir());
    let model = model.map_or_else(|| chatty.to_string_lossy().into_owned(), str::to_owned);
    let args = [&["--metrics-listen", "127.0.0.1:0"], args].concat();
    let enclave = stage.enclave(&model, None, &args).await?;
    let proxy = stage.proxy(&enclave, &format!("model = \"{MODEL}\"\n{config}"), &[]).await?;
    Ok(Served { _stage: stage, enclave, proxy })
}

fn with(base: &Value, more: Value) -> Value {
    let mut all = base.clone();
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

fn chat() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "seed": 7, "max_tokens": 24, "ignore_eos": true})
}

fn completion() -> Value {
    json!({"model": MODEL, "prompt": "Hello world", "seed": 7, "max_tokens": 24, "ignore_eos": true})
}

async fn ok(port: u16, path: &str, body: &Value) -> anyhow::Result<Value> {
    let (status, answer) = exchange(port, path, body).await?;
    anyhow::ensure!(status == 200, "{status} for {body}: {answer}");
    Ok(answer)
}

/// The text of answer `index` in pieces of a stream.
fn streamed(events: &[Value], index: usize) -> String {
    let choices = events.iter().flat_map(|e| e["choices"].as_array().into_iter().flatten());
    let of = choices.filter(|c| c["index"] == index);
    of.filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_and_completions_are_the_same_whole_and_in_pieces() -> anyhow::Result<()> {
    let s = served(None, "", &[]).await?;
    let port = s.proxy.port;
    for (path, body, object) in
        [("/v1/chat/completions", chat(), "chat.completion"), ("/v1/completions", completion(), "text_completion")]
    {
        let body = with(&body, json!({"n": 3}));
        let whole = ok(port, path, &body).await?;
        assert_eq!((&whole["object"], &whole["model"]), (&json!(object), &json!(MODEL)));
        let usage = &whole["usage"];
        assert_eq!(usage["completion_tokens"], 72);
        assert_eq!(usage["total_tokens"], usage["prompt_tokens"].as_u64().context("a number")? + 72);
        let choices = whole["choices"].as_array().context("choices")?;
        let text =
            |i: usize| choices[i]["message"]["content"].as_str().or(choices[i]["text"].as_str()).unwrap_or_default();
        assert_eq!(choices.len(), 3);
        assert!(choices.iter().enumerate().all(|(i, c)| c["index"] == i && c["finish_reason"] == "length"));
        assert_ne!(text(0), text(1));
        // Answer i is what the seed + i gives alone.
        let alone = ok(port, path, &with(&body, json!({"n": 1, "seed": 9}))).await?;
        let alone = alone["choices"][0]["message"]["content"].as_str().or(alone["choices"][0]["text"].as_str());
        assert_eq!(alone, Some(text(2)));

        let body = with(&body, json!({"stream": true, "stream_options": {"include_usage": true}}));
        let answer = post(port, path, &body).await?;
        assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/event-stream"));
        let events = answer.events().await?;
        for i in 0..3 {
            assert_eq!(streamed(&events, i), text(i), "{path}, answer {i}");
        }
        if path.contains("chat") {
            let roles: Vec<_> = events[..3].iter().map(|e| &e["choices"][0]["delta"]["role"]).collect();
            assert_eq!(roles, ["assistant"; 3]);
        }
        let (last, pieces) = events.split_last().context("events")?;
        assert_eq!(last["choices"], json!([]));
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], usage[count], "{path}: {count}");
        }
        // The prompt was asked before: its whole pages of 16 positions are still there, for this key.
        let pages = (usage["prompt_tokens"].as_u64().context("a number")? - 1) / 16 * 16;
        assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], pages, "{path}");
        let ends = pieces.iter().filter(|e| e["choices"][0]["finish_reason"] == "length");
        assert_eq!(ends.count(), 3);
        assert!(events.iter().all(|e| e["id"] == last["id"] && e["created"] == last["created"]));

        let padded = with(&body, json!({"stream_options": {"include_obfuscation": true}}));
        let text = post(port, path, &padded).await?.text().await?;
        let frames: Vec<_> = text.split_inclusive("\n\n").filter(|f| *f != "data: [DONE]\n\n").collect();
        assert!(frames.len() > 20 && frames.iter().all(|f| f.len() % 128 == 0));
    }

    let many = with(&completion(), json!({"prompt": ["a", "b"], "n": 2, "echo": true, "max_tokens": 3}));
    let many = ok(port, "/v1/completions", &many).await?;
    let begins: Vec<_> = (0..4).filter_map(|i| many["choices"][i]["text"].as_str()?.chars().next()).collect();
    assert_eq!(begins, ['a', 'a', 'b', 'b']);
    let ids: Vec<u32> = tiny("llama").prompts[0].prompt_ids.clone();
    let by_ids = with(&completion(), json!({"prompt": ids, "temperature": 0}));
    let by_text = with(&completion(), json!({"prompt": tiny("llama").prompts[0].text, "temperature": 0}));
    let (a, b) = (ok(port, "/v1/completions", &by_ids).await?, ok(port, "/v1/completions", &by_text).await?);
    assert_eq!(a["choices"], b["choices"]);
    let tokens = ok(port, "/tokenize", &json!({"model": MODEL, "prompt": tiny("llama").prompts[0].text})).await?;
    assert_eq!((&tokens["tokens"], &tokens["max_model_len"]), (&json!(ids), &json!(256)));
    // Without a bound, a chat fills the context.
    let mut endless = chat();
    endless.as_object_mut().context("an object")?.remove("max_tokens");
    assert_eq!(ok(port, "/v1/chat/completions", &endless).await?["usage"]["total_tokens"], 256);
    let text = send(port, "GET", "/metrics", &[], b"").await?.text().await?;
    assert!(text.contains("bifrost_proxy_request_success_total{finished_reason=\"length\"}"), "{text}");
    assert!(text.contains("bifrost_proxy_num_requests_running 0"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stops_cut_where_they_should_and_probabilities_add_up() -> anyhow::Result<()> {
    let s = served(None, "", &[]).await?;
    let (port, path) = (s.proxy.port, "/v1/completions");
    let base = with(&completion(), json!({"max_tokens": 60}));
    let plain = ok(port, path, &base).await?;
    let text = plain["choices"][0]["text"].as_str().context("text")?.to_owned();
    let stop: String = text.chars().skip(20).take(2).collect();
    let before = text.split(&stop).next().context("a beginning")?.to_owned();
    assert!(!before.is_empty() && before.len() < text.len());
    for (more, expected) in [
        (json!({"stop": stop}), before.clone()),
        (json!({"stop": ["\u{1}nowhere", stop], "include_stop_str_in_output": true}), format!("{before}{stop}")),
    ] {
        let body = with(&base, more);
        let whole = ok(port, path, &body).await?;
        let choice = &whole["choices"][0];
        assert_eq!((choice["text"].as_str(), choice["stop_reason"].as_str()), (Some(&*expected), Some(&*stop)));
        assert_eq!(choice["finish_reason"], "stop");
        assert!(whole["usage"]["completion_tokens"].as_u64() < Some(60));
        let events = post(port, path, &with(&body, json!({"stream": true}))).await?.events().await?;
        assert_eq!(streamed(&events, 0), expected);
    }
    // A stop text that never comes holds nothing back for good.
    let open: String = text.chars().last().into_iter().chain(['\u{1}']).collect();
    let whole = ok(port, path, &with(&base, json!({"stop": open}))).await?;
    assert_eq!(whole["choices"][0]["text"], json!(text));
    assert_eq!(whole["choices"][0]["finish_reason"], "length");

    let greedy = with(&base, json!({"temperature": 0, "logprobs": 5, "max_tokens": 8}));
    let whole = ok(port, path, &greedy).await?;
    let l = &whole["choices"][0]["logprobs"];
    let (values, tops) =
        (l["token_logprobs"].as_array().context("values")?, l["top_logprobs"].as_array().context("tops")?);
    assert_eq!((values.len(), tops.len()), (8, 8));
    for (value, top) in values.iter().zip(tops) {
        let top: Vec<f64> = top.as_object().context("an object")?.values().filter_map(Value::as_f64).collect();
        assert!(top.iter().all(|other| *other <= value.as_f64().unwrap_or(1.0)), "greedy takes the likeliest");
    }
    let body = with(&chat(), json!({"logprobs": true, "top_logprobs": 20, "temperature": 1.5}));
    let whole = ok(port, "/v1/chat/completions", &body).await?;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().context("content")?.clone();
    assert_eq!(content.len(), 24);
    for token in &content {
        let top: Vec<f64> =
            token["top_logprobs"].as_array().context("top")?.iter().filter_map(|t| t["logprob"].as_f64()).collect();
        let sum: f64 = top.iter().map(|l| l.exp()).sum();
        assert!(top.len() == 20 && sum > 0.2 && sum < 1.0 + 1e-6, "{sum}");
        assert!(top.windows(2).all(|w| w[0] >= w[1]) && token["logprob"].as_f64() <= top.first().copied());
    }
    let events = post(port, "/v1/chat/completions", &with(&body, json!({"stream": true}))).await?.events().await?;
    let pieces = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(pieces.flatten().cloned().collect::<Vec<_>>(), content);
    // The answer without log probabilities is the same.
    let plain = with(&body, json!({"logprobs": false, "top_logprobs": null}));
    let plain = ok(port, "/v1/chat/completions", &plain).await?;
    assert_eq!(plain["choices"][0]["message"], whole["choices"][0]["message"]);

    let forced = with(&base, json!({"logit_bias": {"65": 100}, "max_tokens": 4}));
    assert_eq!(ok(port, path, &forced).await?["choices"][0]["text"], "AAAA");
    let ended = with(
        &forced,
        json!({"stop_token_ids": [65], "min_tokens": 2, "max_tokens": 9, "logit_bias": {"65": 100, "66": 90}}),
    );
    let ended = ok(port, path, &ended).await?;
    assert_eq!((&ended["choices"][0]["text"], &ended["choices"][0]["stop_reason"]), (&json!("BB"), &json!(65)));
    assert_eq!(ended["usage"]["completion_tokens"], 3);
    // The model may be faster than the stop; it never counts as cancelled.
    let metrics = s.enclave.metrics().await?;
    assert!(metrics.contains("requests_total{ended=\"cancelled\"} 0"), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_what_was_wrong() -> anyhow::Result<()> {
    let keys =
        format!("max_body_bytes = 20000\n[[keys]]\nname = \"a\"\nsha256 = \"{HELLO}\"\nrequests_per_minute = 12\n");
    let s = served(None, &keys, &[]).await?;
    let port = s.proxy.port;
    let bearer = "authorization: Bearer hello";
    let ask = async |path: &str, body: Value| {
        let answer = send(port, "POST", path, &[bearer, "x-request-id: mine"], body.to_string().as_bytes()).await?;
        anyhow::ensure!(answer.headers["x-request-id"] == "mine");
        Ok((answer.status, answer.headers.clone(), answer.json().await?["error"].clone()))
    };
    let long = "x".repeat(300);
    for (path, body, status, param, code) in [
        ("/v1/chat/completions", with(&chat(), json!({"temperature": 3})), 400, json!("temperature"), Value::Null),
        (
            "/v1/chat/completions",
            with(&chat(), json!({"model": "gpt-4"})),
            404,
            json!("model"),
            json!("model_not_found"),
        ),
        (
            "/v1/chat/completions",
            with(&chat(), json!({"logit_bias": {"260": 1}})),
            400,
            json!("logit_bias"),
            Value::Null,
        ),
        (
            "/v1/chat/completions",
            with(&chat(), json!({"messages": [{"role": "user", "content": long}]})),
            400,
            json!("messages"),
            json!("context_length_exceeded"),
        ),
        (
            "/v1/chat/completions",
            with(&chat(), json!({"max_tokens": null, "max_completion_tokens": 256})),
            400,
            json!("max_completion_tokens"),
            json!("context_length_exceeded"),
        ),
        (
            "/v1/completions",
            with(&completion(), json!({"prompt": long})),
            400,
            json!("prompt"),
            json!("context_length_exceeded"),
        ),
        ("/v1/completions", with(&completion(), json!({"prompt": [1, 260]})), 400, json!("prompt"), Value::Null),
        ("/v1/completions", with(&completion(), json!({"prompt": "x".repeat(30000)})), 413, Value::Null, Value::Null),
    ] {
        let (found, _, error) = ask(path, body).await?;
        assert_eq!((found, &error["param"], &error["code"]), (status, &param, &code), "{error}");
        assert!(error["message"].is_string() && error["type"] == "invalid_request_error");
    }
    for body in [&b"{\"model\": "[..], b"[1]", b"\xff\xfe"] {
        let answer = send(port, "POST", "/v1/completions", &[bearer], body).await?;
        assert_eq!((answer.status, answer.headers["content-type"].as_str()), (400, "application/json"));
    }
    for wrong in ["authorization: Bearer hell", "authorization: Basic hello", "x-nothing: 1"] {
        let answer = send(port, "POST", "/v1/completions", &[wrong], completion().to_string().as_bytes()).await?;
        assert_eq!(answer.status, 401, "{wrong}");
        assert_eq!(answer.json().await?["error"]["code"], "invalid_api_key");
    }
    // Eleven of twelve requests were let in by now, right or wrong.
    assert_eq!(ask("/v1/completions", completion()).await?.0, 200);
    let (status, headers, error) = ask("/v1/completions", completion()).await?;
    assert_eq!((status, &error["code"]), (429, &json!("rate_limit_exceeded")));
    assert!((1..=5).contains(&headers["retry-after"].parse::<u32>()?), "{headers:?}");

    for (method, path, status) in [
        ("GET", "/health", 200),
        ("GET", "/version", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/tiny", 200),
        ("GET", "/v1/models/other/one", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/embeddings", 404),
    ] {
        let answer = send(port, method, path, &[bearer], b"").await?;
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.headers.contains_key("x-request-id"));
    }
    let models = send(port, "GET", "/v1/models", &[bearer], b"").await?.json().await?;
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!(MODEL), &json!(256)));
    assert_eq!(send(port, "GET", "/v1/models", &[], b"").await?.status, 401);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_cancels_and_full_queues_say_so() -> anyhow::Result<()> {
    let s = served(Some(SLOW), "", &["--max-running", "1", "--max-queue", "0"]).await?;
    let port = s.proxy.port;
    let endless = with(&completion(), json!({"max_tokens": 1000}));
    let mut cancelled = 0;
    for stream in [true, false] {
        let body = with(&endless, json!({"stream": stream}));
        let running = tokio::spawn(async move {
            let mut answer = post(port, "/v1/completions", &body).await?;
            answer.part().await?;
            if stream { Ok(answer) } else { anyhow::bail!("an answer of 1000 tokens, already") }
        });
        let held = if stream {
            Some(running.await??)
        } else {
            until_running(&s.enclave).await?;
            running.abort();
            None
        };
        if held.is_some() {
            let refused = post(port, "/v1/completions", &endless).await?;
            assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (429, "1"));
        }
        drop(held);
        cancelled += 1;
        let line = format!("bifrost_runtime_requests_total{{ended=\"cancelled\"}} {cancelled}");
        until(async || Ok(s.enclave.metrics().await?.contains(&line))).await?;
        until(async || Ok(counted(&s.proxy).await?.contains("bifrost_proxy_num_requests_running 0"))).await?;
    }
    let counts = counted(&s.proxy).await?;
    assert!(counts.contains("finished_reason=\"abort\"} 2"), "{counts}");
    // A stop text ends a sequence early, and it counts as answered. Every token of this model begins with " w".
    let short = with(&endless, json!({"stop": " w"}));
    let short = ok(port, "/v1/completions", &short).await?;
    assert_eq!((&short["choices"][0]["text"], &short["usage"]["completion_tokens"]), (&json!(""), &json!(1)));
    let metrics = s.enclave.metrics().await?;
    assert!(metrics.contains("ended=\"stop\"} 1") && metrics.contains("ended=\"cancelled\"} 2"), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_ends_what_runs_and_takes_nothing_new() -> anyhow::Result<()> {
    let mut s = served(Some(SLOW), "drain_seconds = 120", &[]).await?;
    let port = s.proxy.port;
    let body = with(&completion(), json!({"max_tokens": 40, "stream": true}));
    let mut running = post(port, "/v1/completions", &body).await?;
    running.part().await?.context("a first token")?;
    s.proxy.daemon.terminate();
    until(async || Ok(send(port, "GET", "/health", &[], b"").await?.status == 503)).await?;
    let refused = post(port, "/v1/completions", &completion()).await?;
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (503, "2"));
    let events = running.events().await?;
    assert_eq!(events.last().context("an end")?["choices"][0]["finish_reason"], "length");
    assert!(s.proxy.daemon.wait(LIMIT).await?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dies_in_mid_stream_is_an_event_and_comes_back() -> anyhow::Result<()> {
    let stage = Stage::new()?;
    let mut evaluator = stage.evaluator(0, &["--threads", "1"]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let model = tiny("gpt2").path;
    let enclave = stage.enclave(&model.to_string_lossy(), Some(meddler.port), &["--retry-for", "1"]).await?;
    enclave.connected().await?;
    let proxy = stage.proxy(&enclave, "model = \"tiny\"\nlong_run_seconds = 0\nkeep_alive_seconds = 1\n", &[]).await?;
    let body = with(&completion(), json!({"max_tokens": 200, "stream": true, "n": 4}));
    let mut running = post(proxy.port, "/v1/completions", &body).await?;
    running.part().await?.context("a first token")?;
    // While nothing comes, comments show that the connection lives.
    meddler.hold(Path::Direct);
    while running.part().await?.context("a sign of life")? != b": keep-alive\n\n" {}
    meddler.behave();
    while running.part().await?.context("a token")?.starts_with(b":") {}
    evaluator.daemon.kill();
    let last = running.events().await?.pop().context("an event")?;
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains("evaluator")), "{last}");
    assert_eq!(last["error"]["type"], "server_error");
    // In one piece it is a status, and not to be repeated after what counts as a long run here.
    let failed = post(proxy.port, "/v1/completions", &with(&completion(), json!({"max_tokens": 5}))).await?;
    assert_eq!((failed.status, failed.headers["x-should-retry"].as_str()), (503, "false"));

    drop(enclave);
    until(async || Ok(send(proxy.port, "GET", "/health", &[], b"").await?.status == 503)).await?;
    let refused = post(proxy.port, "/v1/completions", &completion()).await?;
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (503, "2"));
    Ok(())
}

async fn counted(proxy: &Proxy) -> anyhow::Result<String> {
    send(proxy.port, "GET", "/metrics", &[], b"").await?.text().await
}

async fn until_running(enclave: &Enclave) -> anyhow::Result<()> {
    until(async || Ok(enclave.metrics().await?.contains("bifrost_runtime_num_requests_running{protocol=\"local\"} 1")))
        .await
}

/// Asks until it is so.
async fn until(so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !so().await? {
        anyhow::ensure!(Instant::now() < deadline, "it never becomes so; the test hangs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
