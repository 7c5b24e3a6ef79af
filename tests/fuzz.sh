#!/usr/bin/env bash
# libFuzzer over the parsers of evidence, collateral and ciphertexts, on the stable compiler: coverage by LLVM's passes, overflow checks on.
#
#   tests/fuzz.sh [EXECUTIONS [TARGET...]]        1,000,000 and all targets if left out
#   ASAN=1 tests/fuzz.sh ...                      with AddressSanitizer, which the compiler has as an unstable feature
#
# Each target starts anew from the recorded vectors, those of BIFROST_EXTRA_VECTORS included. A panic, an execution of
# 20 s or more memory than the cap ends the script with the name of the input's file. Needs a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

executions=${1:-1000000}
targets=("${@:2}")
if [ ${#targets[@]} -eq 0 ]; then
    targets=(quote signed_quote event_log collateral evidence hcl_report snp_report wire)
fi
extra=${BIFROST_EXTRA_VECTORS:-../shared/vectors}
out=${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p "$out"
out=$(realpath "$out")

flags="--cfg fuzzing -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module"
for pass in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$pass"
done
# libFuzzer itself takes 44 MiB of addresses, and what the code under test may have on top is 64 MiB. All of it is capped,
# since without a sanitizer libFuzzer does not see what is allocated; with one, -malloc_limit_mb caps each allocation.
cap=$(((44 + 64) << 10))
if [ -n "${ASAN:-}" ]; then
    flags+=" -Zsanitizer=address"
    export RUSTC_BOOTSTRAP=1
    cap=unlimited
    out+=/asan
fi

triple=$(rustc -vV | sed -n 's/^host: //p')
for crate in client/verify/fuzz kernels/fuzz; do
    cp Cargo.lock "$crate/Cargo.lock" # the versions that are shipped
    # With a triple named, build scripts and macros are built without the flags.
    RUSTFLAGS=$flags cargo build --release --manifest-path "$crate/Cargo.toml" --target "$triple" --target-dir "$out"
done
programs=$out/$triple/release

corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
"$programs/seeds" "$corpus"
for target in "${targets[@]}"; do
    mkdir -p "$corpus/$target"
    seeds=()
    if [ "$target" != wire ]; then
        for folder in client/verify/testdata/* "$extra"/*; do if [ -d "$folder" ]; then seeds+=("$folder"); fi; done
    fi
    printf '== %s\n' "$target"
    # One arena: each more would reserve 64 MiB of addresses.
    (
        ulimit -v "$cap"
        MALLOC_ARENA_MAX=1 "$programs/$target" "$corpus/$target" "${seeds[@]}" -runs="$executions" -max_len=65536 \
            -malloc_limit_mb=64 -timeout=20 -print_final_stats=1 -artifact_prefix="$out/$target-"
    ) >"$out/$target.log" 2>&1 || { tail -n 60 "$out/$target.log"; exit 1; }
    grep -E '^#[0-9]+\s+(INITED|DONE)|^stat::(slowest|peak)' "$out/$target.log"
done
