//! Whether a trust domain was made as the policy asks, and measures what it lists.

use super::quote::Quote;
use crate::{
    eventlog::{EventLog, digest, replay},
    factor::Factor,
    hex::{Hex, Sha384, one_of},
    policy::{self, Image, Payload, Rtmr3, Rules, Value},
};
use proto::v1::{Evidence, RuntimeEvent, RuntimeValues};

/// How the domain was made: section `[td]`. MRSEAM is noted and never judged, for it moves with every update of the
/// module, whose status is judged instead.
#[must_use]
pub fn judge_domain(quote: &Quote, td: &policy::Td) -> Vec<Factor> {
    let measured = quote.measurements();
    let [tud, ..] = measured.attributes.0;
    let exact = |code, expected: Sha384, found: Sha384| {
        Factor::judged(code, expected == found, expected.to_string(), found.to_string())
    };
    vec![
        Factor::judged("td.debug_off", tud == 0, "first byte of the attributes 00", format!("{tud:02x}")),
        Factor::judged(
            "td.attributes",
            measured.attributes == td.attributes,
            td.attributes.to_string(),
            measured.attributes.to_string(),
        ),
        Factor::judged("td.xfam", td.xfam.contains(&measured.xfam), one_of(&td.xfam), measured.xfam.to_string()),
        exact("td.mr_config_id", td.mr_config_id, measured.mr_config_id),
        exact("td.mr_owner", td.mr_owner, measured.mr_owner),
        exact("td.mr_owner_config", td.mr_owner_config, measured.mr_owner_config),
        Factor::noted("mr.seam", measured.mr_seam.to_string()),
    ]
}

/// What the registers hold: sections `[[platform]]` and `[[image]]`, and the logs that came along.
///
/// `paravisor` says that the domain is below Azure's: its runtime registers are never extended there and must be zero,
/// and the virtual TPM counts instead.
#[must_use]
pub fn judge_registers(quote: &Quote, rules: &Rules, evidence: &Evidence, paravisor: bool) -> Vec<Factor> {
    let measured = quote.measurements();
    let firmware: Vec<_> = rules.platform.iter().filter(|platform| platform.mr_td == measured.mr_td).collect();
    let mr_td = Factor::judged(
        "mr.td",
        !firmware.is_empty(),
        one_of(rules.platform.iter().map(|platform| format!("{} ({})", platform.mr_td, platform.name))),
        measured.mr_td.to_string(),
    );
    if paravisor {
        let zero = Hex::ZERO;
        let registers = RTMRS.iter().zip(&measured.rtmr).map(|(code, found)| {
            Factor::judged(
                code,
                *found == zero,
                format!("{zero}, for below a paravisor the PCRs count"),
                found.to_string(),
            )
        });
        return std::iter::once(mr_td).chain(registers).collect();
    }
    let [rtmr0, rtmr1, rtmr2, rtmr3] = measured.rtmr;
    let shapes: Vec<Sha384> = firmware.iter().flat_map(|platform| platform.rtmr0.iter().copied()).collect();
    let kernels: Vec<&Image> = rules.image.iter().filter(|image| image.rtmr1 == rtmr1).collect();
    let images: Vec<&Image> = kernels.iter().copied().filter(|image| image.rtmr2 == rtmr2).collect();
    let [code0, code1, code2, _] = RTMRS;
    vec![
        mr_td,
        Factor::judged(code0, shapes.contains(&rtmr0), one_of(&shapes), rtmr0.to_string()),
        Factor::judged(
            code1,
            !kernels.is_empty(),
            one_of(rules.image.iter().map(|image| format!("{} ({})", image.rtmr1, image.name))),
            rtmr1.to_string(),
        ),
        Factor::judged(
            code2,
            !images.is_empty(),
            one_of(kernels.iter().map(|image| format!("{} ({})", image.rtmr2, image.name))),
            rtmr2.to_string(),
        ),
        judge_rtmr3(&images, rtmr3, evidence),
        judge_event_log(&evidence.event_log, &measured.rtmr),
    ]
}

const RTMRS: [&str; 4] = ["mr.rtmr0", "mr.rtmr1", "mr.rtmr2", "mr.rtmr3"];

/// RTMR3 by the rule of an image that RTMR1 and RTMR2 belong to; the first whose rule holds, or else the first.
fn judge_rtmr3(images: &[&Image], found: Sha384, evidence: &Evidence) -> Factor {
    let [.., code] = RTMRS;
    let rules: Vec<(bool, String, String)> = images.iter().map(|image| rtmr3(image, found, evidence)).collect();
    match rules.iter().find(|(good, ..)| *good).or(rules.first()) {
        Some((good, expected, found)) => Factor::judged(code, *good, expected, found),
        None => Factor::judged(code, false, "the rule of an accepted image", format!("{found}, of no accepted image")),
    }
}

fn rtmr3(image: &Image, found: Sha384, evidence: &Evidence) -> (bool, String, String) {
    match image.rtmr3 {
        Rtmr3::Zero => (found == Hex::ZERO, Hex::<48>::ZERO.to_string(), found.to_string()),
        Rtmr3::Replay => {
            let names = image.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", ");
            let expected = format!("replay of the events {names}");
            match events(image, &evidence.runtime_log, evidence.values.as_ref()) {
                Err(text) => (false, expected, text),
                Ok(()) => match replay(&evidence.runtime_log) {
                    Err(error) => (false, expected, error.to_string()),
                    Ok(replayed) => (replayed == found, format!("{replayed}, {expected}"), found.to_string()),
                },
            }
        }
    }
}

/// Whether a runtime log has exactly the events of an image, in order. What they say is taken from the policy, or is a
/// value that the policy judges and the binding covers.
fn events(image: &Image, log: &[RuntimeEvent], values: Option<&RuntimeValues>) -> Result<(), String> {
    if log.len() != image.events.len() {
        return Err(format!("a runtime log of {} events, expected {}", log.len(), image.events.len()));
    }
    for (expected, found) in image.events.iter().zip(log) {
        if expected.name != found.name {
            return Err(format!("event {:?}, expected {:?}", clipped(&found.name), expected.name));
        }
        let good = match &expected.payload {
            Payload::Listed(list) => list.iter().any(|payload| payload.0.as_slice() == found.payload.as_ref()),
            Payload::Value(value) => values.is_some_and(|values| {
                let value = match value {
                    Value::ParamsDigest => &values.params_digest,
                    Value::ModelDigest => &values.model_digest,
                    Value::ConfigDigest => &values.config_digest,
                };
                !value.is_empty() && *value == found.payload
            }),
        };
        if !good {
            return Err(format!(
                "event {:?} of digest {} with a payload that is not accepted",
                found.name,
                digest(found)
            ));
        }
    }
    Ok(())
}

/// Whether the firmware's log explains the registers. It proves nothing beyond them, so none at all is no failure.
fn judge_event_log(log: &[u8], registers: &[Sha384; 4]) -> Factor {
    const CODE: &str = "eventlog.replay";
    const FIRMWARE: usize = 3;
    if log.is_empty() {
        return Factor::noted(CODE, "no event log came along; the registers are judged by the policy alone");
    }
    let expected = "a log that replays to RTMR0 to RTMR2";
    match EventLog::parse(log) {
        Err(error) => Factor::judged(CODE, false, expected, error.to_string()),
        Ok(log) => {
            let replayed = log.replay();
            let differing: Vec<String> = replayed
                .iter()
                .zip(registers)
                .enumerate()
                .take(FIRMWARE)
                .filter(|(_, (replayed, found))| replayed != found)
                .map(|(at, (replayed, _))| format!("RTMR{at} replays to {replayed}"))
                .collect();
            let found = if differing.is_empty() {
                format!("so it does, in {} extensions", log.extensions().len())
            } else {
                differing.join(", ")
            };
            Factor::judged(CODE, differing.is_empty(), expected, found)
        }
    }
}

/// A text of the guest's for a report.
fn clipped(text: &str) -> String {
    const SHOWN: usize = 64;
    if text.chars().count() <= SHOWN {
        text.to_owned()
    } else {
        format!("{}...", text.chars().take(SHOWN).collect::<String>())
    }
}
