//! `bifrost keygen`: draws a tenant's key into a new file.

use std::process::ExitCode;

use crate::Error;
use crate::cli::KeygenArgs;
use crate::key::{Order, draw};
use crate::report::print;
use crate::trust::{Trust, time_of};

const DAY: u64 = 86_400;

/// Draws the key and says what it is called.
///
/// # Errors
/// A file that exists, names that are none.
pub fn run<W: Trust>(args: &KeygenArgs, now: u64) -> Result<ExitCode, Error> {
    let key_id = match &args.key_id {
        Some(id) => id.clone(),
        None => named(now)?,
    };
    let order = Order {
        tenant: args.tenant.clone(),
        key_id,
        created: now,
        expires_at: now + u64::from(args.expires_days) * DAY,
        params_digest: args.params,
        // A simulated world has no others.
        test: args.test || W::TEST_KEYS,
    };
    let digest = draw(&args.out, &order)?;
    let Order { tenant, key_id, expires_at, test, .. } = order;
    let kind = if test { "TEST key" } else { "key" };
    let (file, end) = (args.out.display(), time_of(expires_at));
    print(&format!("{kind} {key_id} of tenant {tenant} in {file}, until {end}\nadmission key {digest}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The date and eight random digits.
fn named(now: u64) -> Result<String, Error> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| Error::Platform(format!("no entropy: {error}")))?;
    let time = time_of(now);
    let date = time.split('T').next().unwrap_or_default();
    Ok(format!("{date}-{}", attest_verify::hex::encode(&bytes)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_begin_with_the_date() {
        let name = super::named(1_700_000_000).unwrap();
        assert!(name.starts_with("2023-11-14-") && name.len() == 19, "{name}");
    }
}
