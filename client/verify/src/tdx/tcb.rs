//! Whether a platform is good enough, by what its signatures prove and section `[tcb]` of the policy.

use super::{
    engine::{self, Claims, QuoteCollateralV3},
    judge::Appraisal,
    quote::Quote,
};
use crate::{
    collateral::Dates,
    factor::Factor,
    hex::{encode, one_of},
    policy::{self, Status},
    time,
};

const HOUR: u64 = 3600;

pub(super) fn judge(
    quote: &Quote,
    collateral: &QuoteCollateralV3,
    dates: &Dates,
    claims: &Claims,
    appraisal: &Appraisal<'_>,
) -> Vec<Factor> {
    let &Appraisal { tcb, ppid, now, eval_floor, .. } = appraisal;
    let mut factors = vec![
        age(dates, tcb, now),
        eval_number(claims, tcb, eval_floor),
        platform(claims, tcb, now),
        level("tcb.qe", claims.qe_status, claims.qe_date, tcb, now),
        module(quote, collateral, tcb, now),
        advisories(claims, tcb),
        flags(claims, tcb.allow),
    ];
    factors.push(match ppid {
        Some(list) => Factor::judged(
            "platform.ppid",
            list.contains(&claims.ppid),
            one_of(list.iter().map(|id| encode(&id.0))),
            encode(&claims.ppid.0),
        ),
        None => Factor::noted("platform.ppid", encode(&claims.ppid.0)),
    });
    factors
}

fn age(dates: &Dates, tcb: &policy::Tcb, now: u64) -> Factor {
    let hours = now.saturating_sub(dates.issued).div_ceil(HOUR);
    Factor::judged(
        "collateral.age",
        hours <= u64::from(tcb.max_collateral_age_hours),
        format!("{} hours at most", tcb.max_collateral_age_hours),
        format!("{hours} hours, issued {}", time::show(dates.issued)),
    )
}

fn eval_number(claims: &Claims, tcb: &policy::Tcb, floor: u32) -> Factor {
    let least = tcb.min_eval_data_number.max(floor);
    let why = if floor > tcb.min_eval_data_number { ", accepted before" } else { ", by the policy" };
    Factor::judged(
        "collateral.eval_number",
        claims.eval_number >= least,
        format!("{least} or more{why}"),
        claims.eval_number.to_string(),
    )
}

/// The status of everything put together, by the oldest of the dates that it rests on.
fn platform(claims: &Claims, tcb: &policy::Tcb, now: u64) -> Factor {
    let date =
        if claims.qe_status.is_out_of_date() { claims.level_date.min(claims.qe_date) } else { claims.level_date };
    level("tcb.platform", claims.status, date, tcb, now)
}

fn level(code: &'static str, status: Status, date: u64, tcb: &policy::Tcb, now: u64) -> Factor {
    let found = format!("{status}, level of {}", time::show(date));
    Factor::judged(code, tcb.accepts(status, date, now), tcb.accepted(), found)
}

/// The TDX module, by the version that runs now if the report tells it from the one at launch.
fn module(quote: &Quote, collateral: &QuoteCollateralV3, tcb: &policy::Tcb, now: u64) -> Factor {
    const CODE: &str = "tcb.module";
    let (launch, current) = quote.tee_tcb_svn();
    match engine::module(collateral, current.unwrap_or(launch)) {
        Ok(Some(found)) => {
            let shown =
                format!("{} {} of SVN {}, level of {}", found.id, found.status, found.svn, time::show(found.date));
            Factor::judged(CODE, tcb.accepts(found.status, found.date, now), tcb.accepted(), shown)
        }
        Ok(None) => Factor::noted(CODE, "a module of TDX 1.0, rated with the platform"),
        Err(text) => Factor::judged(CODE, false, tcb.accepted(), text),
    }
}

fn advisories(claims: &Claims, tcb: &policy::Tcb) -> Factor {
    let refused = |id: &&String| tcb.reject_advisories.iter().any(|other| other.eq_ignore_ascii_case(id));
    let found = if claims.advisories.is_empty() { "none".to_owned() } else { claims.advisories.join(", ") };
    let expected = if tcb.reject_advisories.is_empty() {
        "any".to_owned()
    } else {
        format!("none of {}", tcb.reject_advisories.join(", "))
    };
    Factor::judged("tcb.advisories", !claims.advisories.iter().any(|id| refused(&id)), expected, found)
}

fn flags(claims: &Claims, allow: policy::Allow) -> Factor {
    let flags = [
        ("dynamic_platform", claims.dynamic_platform, allow.dynamic_platform),
        ("cached_keys", claims.cached_keys, allow.cached_keys),
        ("smt", claims.smt, allow.smt),
    ];
    let names = |which: fn(&(&'static str, bool, bool)) -> bool| {
        let names: Vec<&str> = flags.iter().filter(|flag| which(flag)).map(|(name, ..)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    Factor::judged(
        "platform.flags",
        flags.iter().all(|(_, set, allowed)| allowed | !set),
        format!("none but {}", names(|(_, _, allowed)| *allowed)),
        names(|(_, set, _)| *set),
    )
}
