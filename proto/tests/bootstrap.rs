//! The committed generated code is what the `.proto` files say. Run with `BIFROST_REGENERATE=1` to rewrite it.
use proto::v1::{
    Chat, ChatMessage, Finished, GenerateEvent, GenerateRequest, Token, TokenIds, TokenLogprob, TokenizeRequest,
    generate_event, generate_request, tokenize_request,
};
use std::{fs, path::Path};

const FILES: [&str; 5] =
    ["v1/attestation.proto", "v1/common.proto", "v1/evaluator.proto", "v1/inference.proto", "v1/keys.proto"];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("temporary directory");
    let descriptors = protox::compile(FILES.map(|f| root.join(f)), [root]).expect("the proto files compile");
    tonic_prost_build::configure()
        .bytes(".")
        .skip_debug(proto::SECRET.map(|name| format!(".bifrost.v1.{name}")))
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("code generation");
    let fresh = fs::read_to_string(out.path().join("bifrost.v1.rs")).expect("one generated file");
    let committed = root.join("src/gen/bifrost.v1.rs");
    if std::env::var_os("BIFROST_REGENERATE").is_some() {
        fs::create_dir_all(committed.parent().expect("parent")).expect("directory");
        fs::write(&committed, &fresh).expect("write generated code");
    }
    let held = fs::read_to_string(&committed).expect("committed generated code");
    assert!(held == fresh, "src/gen is stale: run BIFROST_REGENERATE=1 cargo test -p proto");
}

#[test]
fn debug_output_reveals_neither_prompts_nor_tokens() {
    let message = |role: &str| ChatMessage { role: role.into(), content: "swordfish".into() };
    let chat = Chat { messages: vec![message("user"), message("swordfish")] };
    for (input, says) in [
        (generate_request::Input::Prompt("swordfish".into()), "Prompt(9 bytes)"),
        (generate_request::Input::Chat(chat), "Chat(2 messages)"),
        (generate_request::Input::TokenIds(TokenIds { ids: vec![31_337; 3] }), "TokenIds(3)"),
    ] {
        let request = GenerateRequest { input: Some(input.clone()), max_tokens: 77, ..Default::default() };
        let shown = format!("{request:?} {request:#?} {input:?}");
        assert!(shown.contains(says) && shown.contains("77"), "{shown}");
        assert!(!shown.contains("swordfish") && !shown.contains("31337"), "{shown}");
    }
    let logprob = TokenLogprob { id: 31_337, text: "swordfish".into(), bytes: "swordfish".into(), logprob: -1.0 };
    let finished = Finished { text: "swordfish".into(), stop: "swordfish".into(), ..Default::default() };
    let asked = TokenizeRequest { input: Some(tokenize_request::Input::Prompt("swordfish".into())) };
    let token =
        Token { id: 31_337, text: "swordfish".into(), logprob: Some(logprob.clone()), top: vec![logprob.clone()] };
    assert_eq!(format!("{asked:?}"), "TokenizeRequest { input: Some(Prompt(9 bytes)) }");
    let event = GenerateEvent { event: Some(generate_event::Event::Token(token.clone())) };
    for shown in [
        format!("{event:?}"),
        format!("{token:?}"),
        format!("{logprob:?}"),
        format!("{finished:?}"),
        format!("{:?}", message("swordfish")),
    ] {
        assert!(shown.contains("..") && !shown.contains("swordfish") && !shown.contains("31337"), "{shown}");
    }
}
