//! What the operating system must not do with this process's memory.

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
};

/// No core dumps and no ptrace by others of the same user; memory stays out of swap where that is allowed.
///
/// `lock` is for production: pages are locked as they are touched, under an unlimited RLIMIT_MEMLOCK only, because with a
/// limit later allocations would fail.
pub fn harden(lock: bool) {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let dumps = set_dumpable_behavior(DumpableBehavior::NotDumpable).and_then(|()| setrlimit(Resource::Core, none));
    if let Err(error) = dumps {
        tracing::warn!(%error, "core dumps could not be turned off");
    }
    if !lock {
        return;
    }
    let unlimited = getrlimit(Resource::Memlock).current.is_none();
    let locked = unlimited.then(|| mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT));
    match locked {
        Some(Ok(())) => tracing::info!("memory is locked"),
        Some(Err(error)) => tracing::warn!(%error, "memory is not locked and may be swapped out"),
        None => tracing::warn!("memory is not locked and may be swapped out: RLIMIT_MEMLOCK is limited"),
    }
}
