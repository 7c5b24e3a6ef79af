//! Keeps glibc from holding on to freed memory: left alone, it raises the size from which a block gets pages of its
//! own up to that of the largest one freed, and words of bulk jobs then stay in its arenas, 30 MB in each
//! (measured: five jobs of 25 MB leave 115 to 170 MB, with fixed sizes 5).

use std::{
    env,
    os::unix::process::CommandExt,
    process::{self, Command},
};

/// From this size on a block has pages of its own, which go back when it is freed; and what an arena may keep.
const SIZES: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "524288"), ("MALLOC_TRIM_THRESHOLD_", "2097152")];

/// Starts this program anew, as the same process, with the sizes in its environment: glibc reads them before the
/// first instruction of ours, and its function for it cannot be called from safe code. Returns if they are there, or
/// if that cannot be done; then the daemon only takes more memory.
pub fn fix_sizes() {
    if !cfg!(target_env = "gnu") || SIZES.iter().any(|(name, _)| env::var_os(name).is_some()) {
        return;
    }
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| env!("CARGO_PKG_NAME").into());
    // By its own path, which the system names the process after.
    let program = env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    // Comes back only with an error.
    let error = Command::new(program).arg0(name).args(arguments).envs(SIZES).exec();
    eprintln!("gpu-evaluator: freed memory may stay with process {}: {error}", process::id());
}
