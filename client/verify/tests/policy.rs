//! The policy file: the example is one, typos are refused, empty lists accept nothing.

use attest_verify::policy::{ConfigDigest, Payload, Policy, PolicyError, Rtmr3, Status, Tee, Value};

const EXAMPLE: &str = include_str!("../policy.example.toml");

#[test]
fn the_example_is_a_policy() {
    let policy = Policy::parse(EXAMPLE).unwrap();
    let rules = policy.rules();
    assert_eq!(rules.version, 1);
    assert_eq!(rules.platforms, [Tee::Tdx]);
    let tcb = rules.tcb.as_ref().unwrap();
    assert_eq!(tcb.accept, [Status::UpToDate]);
    assert_eq!((tcb.min_eval_data_number, tcb.max_collateral_age_hours), (19, 168));
    assert!(tcb.allow.dynamic_platform && tcb.allow.smt && !tcb.allow.cached_keys);
    let td = rules.td.as_ref().unwrap();
    assert_eq!(td.attributes.to_string(), "0000001000000000");
    assert_eq!(td.mr_config_id.0, [0; 48]);
    assert_eq!(rules.image[0].rtmr3, Rtmr3::Replay);
    assert!(matches!(rules.image[0].events[0].payload, Payload::Value(Value::ModelDigest)));
    assert_eq!(rules.runtime.config_digest, ConfigDigest::Any);
    assert!(rules.runtime.ppid.is_none());
}

#[test]
fn the_digest_names_the_text() {
    let one = Policy::parse(EXAMPLE).unwrap().digest();
    assert_eq!(one, Policy::parse(EXAMPLE).unwrap().digest());
    assert_ne!(one, Policy::parse(&format!("{EXAMPLE}\n")).unwrap().digest());
}

#[test]
fn a_typo_in_any_key_is_refused() {
    let mut tried = 0;
    for (at, line) in EXAMPLE.lines().enumerate() {
        let Some((key, _)) = line.split_once('=') else { continue };
        let key = key.trim();
        if line.starts_with('#') {
            continue;
        }
        let typo = EXAMPLE
            .lines()
            .enumerate()
            .map(|(other, text)| if other == at { text.replacen(key, &format!("{key}x"), 1) } else { text.to_owned() })
            .collect::<Vec<_>>()
            .join("\n");
        let error = Policy::parse(&typo).unwrap_err().to_string();
        assert!(error.contains(&format!("{key}x")), "{key}: {error}");
        tried += 1;
    }
    assert!(tried >= 20, "{tried}");
    for (from, to) in [
        ("[tcb]", "[tbc]"),
        ("[td]", "[tdx]"),
        ("[runtime]", "[run]"),
        ("[[image]]", "[[images]]"),
        ("[[platform]]", "[[platforms]]"),
        ("smt = true", "smtp = true"),
        ("\"UpToDate\"]\n# Statuses", "\"Uptodate\"]\n# Statuses"),
        ("[\"tdx\"]", "[\"TDX\"]"),
        ("rtmr3 = \"replay\"", "rtmr3 = \"any\""),
        ("config_digest = \"any\"", "config_digest = \"*\""),
        ("\"model_digest\"", "\"models_digest\""),
    ] {
        let changed = EXAMPLE.replace(from, to);
        assert_ne!(changed, EXAMPLE, "{from}");
        assert!(Policy::parse(&changed).is_err(), "{to}");
    }
}

#[test]
fn a_missing_key_is_refused() {
    for key in ["version", "platforms", "accept", "min_eval_data_number", "max_collateral_age_hours", "xfam", "mr_td"]
        .into_iter()
        .chain(["rtmr0", "rtmr1", "rtmr2", "rtmr3", "params_digest", "model_digest", "config_digest"])
    {
        let without =
            EXAMPLE.lines().filter(|line| !line.starts_with(&format!("{key} ="))).collect::<Vec<_>>().join("\n");
        assert_ne!(without.len() + 1, EXAMPLE.len(), "{key}");
        assert!(Policy::parse(&without).is_err(), "{key}");
    }
}

#[test]
fn digests_of_another_length_are_refused() {
    for (from, to) in [
        ("\"0000001000000000\"", "\"00000010000000\""),
        ("\"e702060000000000\"", "\"*\""),
        ("[\"000102", "[\"0102"),
        ("mr_td = \"91", "mr_td = \""),
    ] {
        let error = Policy::parse(&EXAMPLE.replacen(from, to, 1)).unwrap_err();
        assert!(matches!(error, PolicyError::Syntax(_)), "{to}: {error}");
    }
}

#[test]
fn each_platform_needs_its_sections() {
    for (platform, section) in [("sev_snp", "snp"), ("azure_tdx", "azure"), ("azure_sev_snp", "snp")] {
        let error = Policy::parse(&EXAMPLE.replace("[\"tdx\"]", &format!("[\"{platform}\"]"))).unwrap_err();
        assert!(matches!(error, PolicyError::Section { section: found, .. } if found == section), "{error}");
    }
}

#[test]
fn what_is_never_accepted_cannot_be_written() {
    for (from, to, expected) in [
        ("[\"UpToDate\"]", "[\"Revoked\"]", "never accepted"),
        ("[\"UpToDate\"]", "[\"UpToDate\", \"OutOfDate\"]", "grace period"),
        ("grace_days = {}", "grace_days = { OutOfDate = 3 }", "tcb.accept does not"),
        ("\"0000001000000000\"", "\"0100001000000000\"", "debug"),
        ("rtmr3 = \"replay\"", "rtmr3 = \"zero\"", "lists events"),
    ] {
        let error = Policy::parse(&EXAMPLE.replacen(&format!("\n{}", from), &format!("\n{}", to), 1).replacen(
            &format!("= {from}"),
            &format!("= {to}"),
            1,
        ))
        .unwrap_err()
        .to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn every_status_is_judged_by_the_list_and_its_grace() {
    const DAY: u64 = 86_400;
    let with = |accept: &str, grace: &str| {
        let text = EXAMPLE
            .replace("accept = [\"UpToDate\"]\n# Statuses", &format!("accept = [{accept}]\n# Statuses"))
            .replace("\ngrace_days = {}", &format!("\ngrace_days = {{ {grace} }}"));
        Policy::parse(&text).unwrap().rules().tcb.clone().unwrap()
    };
    let (date, now) = (1_000 * DAY, 1_030 * DAY);
    let nothing = with("", "");
    let strict = with("\"UpToDate\"", "");
    for status in Status::ALL {
        assert!(!nothing.accepts(status, now, now), "an empty list accepts {status}");
        assert_eq!(strict.accepts(status, date, now), status == Status::UpToDate, "{status}");
        if status == Status::Revoked {
            continue;
        }
        let days = |days: u32| with(&format!("\"{status}\""), &format!("{status} = {days}"));
        assert!(days(30).accepts(status, date, now), "{status} on its last day");
        assert!(!days(29).accepts(status, date, now), "{status} a day late");
        for other in Status::ALL {
            assert!(other == status || !days(30).accepts(other, date, now), "{status} accepts {other}");
        }
    }
    let listed = with("\"SWHardeningNeeded\"", "");
    assert!(listed.accepts(Status::SWHardeningNeeded, 0, now), "statuses that are not out of date need no grace");
}

#[test]
fn a_huge_policy_is_refused_before_it_is_read() {
    let error = Policy::parse(&"#".repeat((1 << 20) + 1)).unwrap_err();
    assert!(matches!(error, PolicyError::Size { .. }), "{error}");
}
