#!/usr/bin/env bash
# Checks of what lies in deploy/: scripts parse, units keep their exposure at 2.0 or below (systemd-analyze security) and
# are understood (systemd-analyze verify), install.sh works below a directory and twice, the release script asks and refuses
# as it says, Kubernetes manifests are YAML with what they promise. What this host cannot check is said and passed over.
set -euo pipefail
cd "$(dirname "$0")"

failures=0
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
ok() { printf 'ok      %s\n' "$*"; }
bad() { printf 'FAILED  %s\n' "$*"; failures=$((failures + 1)); }
skip() { printf 'skipped %s\n' "$*"; }
expect() { # status, text, command...
    local status=$1 text=$2 found=0
    shift 2
    "$@" >"$tmp/out" 2>&1 </dev/null || found=$?
    if [ "$found" -eq "$status" ] && grep -qF -- "$text" "$tmp/out"; then ok "${label:-$*}"; else
        bad "${label:-$*}: exit $found, expected $status with '$text'"
        sed 's/^/        /' "$tmp/out"
    fi
}

for script in ./*.sh; do
    if bash -n "$script"; then ok "$script parses"; else bad "$script"; fi
done
if command -v shellcheck >/dev/null; then
    if shellcheck ./*.sh; then ok shellcheck; else bad shellcheck; fi
else skip "shellcheck is not installed"; fi

# Units: 20 is an exposure of 2.0.
if command -v systemd-analyze >/dev/null; then
    for unit in systemd/*.service; do
        if out=$(systemd-analyze security --offline=true --threshold=20 "$unit" 2>&1); then ok "$unit ${out##*$'\n'}"; else bad "$unit ${out##*$'\n'}"; fi
        for part in "$unit".d/*.example; do
            [ -e "$part" ] || continue
            merged=$tmp/$(basename "$unit")
            { cat "$unit"; echo; cat "$part"; } >"$merged"
            if out=$(systemd-analyze security --offline=true --threshold=20 "$merged" 2>&1); then ok "$part ${out##*$'\n'}"; else bad "$part ${out##*$'\n'}"; fi
        done
    done
    # Programs are stood in for, so that only the units themselves can be wrong.
    mkdir -p "$tmp/root" "$tmp/units"
    for unit in systemd/*.service systemd/*.socket systemd/*.timer; do
        sed -E 's|^(Exec[A-Za-z]*=)/[^ ]*|\1/bin/true|' "$unit" >"$tmp/units/$(basename "$unit")"
    done
    if out=$(SYSTEMD_UNIT_PATH="$tmp/units:" systemd-analyze verify --man=no "$tmp"/units/* 2>&1) && ! grep -qE "bifrost|gpu-evaluator|trusted-runtime|$tmp" <<<"$out"; then
        ok "systemd-analyze verify"
    else
        bad "systemd-analyze verify: $out"
    fi
else skip "systemd-analyze is not installed"; fi
if command -v systemd-sysusers >/dev/null; then
    mkdir -p "$tmp/sysroot/etc"
    if systemd-sysusers --root="$tmp/sysroot" "$PWD/sysusers.d/bifrost.conf" >/dev/null 2>&1 && grep -q ^bifrost-runtime: "$tmp/sysroot/etc/passwd"; then ok sysusers; else bad sysusers; fi
else skip "systemd-sysusers is not installed"; fi

# install.sh
mkdir "$tmp/bin"
for program in gpu-evaluator trusted-runtime bifrost-quote-helper bifrost; do
    printf '#!/bin/sh\n' >"$tmp/bin/$program"
    chmod 755 "$tmp/bin/$program"
done
for role in evaluator runtime client; do
    label="install.sh $role" expect 0 "installed below" ./install.sh --role "$role" --binaries "$tmp/bin" --destdir "$tmp/$role" --prefix /opt/bifrost
done
echo '# mine' >>"$tmp/runtime/etc/bifrost/trusted-runtime.toml"
before=$(sha256sum "$tmp/runtime/etc/bifrost/trusted-runtime.toml")
label="install.sh keeps a changed configuration" expect 0 "kept      /etc/bifrost/trusted-runtime.toml" \
    ./install.sh --role runtime --binaries "$tmp/bin" --destdir "$tmp/runtime" --prefix /opt/bifrost
[ "$before" = "$(sha256sum "$tmp/runtime/etc/bifrost/trusted-runtime.toml")" ] || bad "install.sh changed a configuration"
if grep -rq /usr/local/ "$tmp/runtime/etc/systemd/system"/*.service; then bad "install.sh --prefix leaves /usr/local in a unit"; else ok "install.sh --prefix"; fi
label="install.sh without a role" expect 2 "expected evaluator, runtime or client" ./install.sh
label="install.sh without programs" expect 1 "is not there" ./install.sh --role client --binaries "$tmp/none" --destdir "$tmp/x"

# release-key.sh against a program that answers as bifrost does.
cat >"$tmp/fake" <<'EOF'
#!/usr/bin/env bash
printf '%s\n' "$*" >>"$0.calls"
case "$1 $*" in
    "verify "*--json*) [ ! -e "$0.reject" ] || { echo '{"verdict":"rejected"}'; exit 1; }; echo '{"verdict":"accepted","instance":"0123456789abcdef"}' ;;
    "verify "*) echo "td.debug_off pass" ;;
    "release-key "*--held*) [ -e "$0.held" ] ;;
    "release-key "*) echo "released" ;;
esac
EOF
chmod 755 "$tmp/fake"
echo 'version = 1' >"$tmp/policy.toml"
echo key >"$tmp/tenant.key"
release=(./release-key.sh --bifrost "$tmp/fake" --runtime attested://r:7600 --policy "$tmp/policy.toml" --key "$tmp/tenant.key")
label="release-key.sh asks nobody" expect 2 "nobody to ask" "${release[@]}"
label="release-key.sh shows the policy and releases" expect 0 "    version = 1" "${release[@]}" --yes --once "$tmp/released"
if grep -q -- "release-key .*--instance 0123456789abcdef" "$tmp/fake.calls"; then ok "release-key.sh binds to the instance"; else bad "release-key.sh: no --instance"; fi
if grep -q -- "release-key .*--tenant-key $tmp/tenant.key" "$tmp/fake.calls"; then ok "release-key.sh passes the key's file"; else bad "release-key.sh: no --tenant-key"; fi
label="release-key.sh --once" expect 0 "has the key already" "${release[@]}" --yes --once "$tmp/released"
echo other >"$tmp/tenant.key"
label="release-key.sh --once with a rotated key" expect 0 "released" "${release[@]}" --yes --once "$tmp/released"
echo third >"$tmp/tenant.key"
touch "$tmp/fake.held"
label="release-key.sh --once with a key that was released by hand" expect 0 "holds the key already" "${release[@]}" --yes --once "$tmp/released"
rm "$tmp/fake.held"
echo age >"$tmp/model.key"
label="release-key.sh --once with a model's key" expect 0 "model key $tmp/model.key" "${release[@]}" --yes --once "$tmp/released" --model-key "$tmp/model.key"
if grep -q -- "release-key .*--model-key $tmp/model.key" "$tmp/fake.calls"; then ok "release-key.sh passes the model's key"; else bad "release-key.sh: no --model-key"; fi
label="release-key.sh --once with both keys" expect 0 "has the key already" "${release[@]}" --yes --once "$tmp/released" --model-key "$tmp/model.key"
label="release-key.sh with a model's key that is not there" expect 2 "cannot be read" "${release[@]}" --yes --model-key "$tmp/none"
touch "$tmp/fake.reject"
label="release-key.sh rejected" expect 1 "rejected" "${release[@]}" --yes
if [ "$(grep ^release-key "$tmp/fake.calls" | grep -vc -- --held)" -eq 3 ]; then ok "release-key.sh released three times"; else bad "release-key.sh released at other times"; fi
label="release-key.sh without a policy" expect 2 "cannot be read" "${release[@]}" --policy "$tmp/none" --yes
label="azure-evidence.sh usage" expect 1 "expected tdx or sev_snp" ./azure-evidence.sh sample

# The units' commands against the programs, where those have been built.
for target in ../target/release ../target/debug; do
    [ -x "$target/bifrost" ] || continue
    for flag in --runtime --attestation-policy --tenant-key --config; do
        if "$target/bifrost" proxy --help | grep -q -- "$flag "; then ok "bifrost proxy has $flag"; else bad "bifrost proxy has no $flag"; fi
    done
    for flag in --runtime --policy --tenant-key --model-key --instance --held --yes; do
        if "$target/bifrost" release-key --help | grep -q -- "$flag"; then ok "bifrost release-key has $flag"; else bad "bifrost release-key has no $flag"; fi
    done
    break
done
if grep -q -- '--attestation-policy' systemd/bifrost-proxy.service && ! grep -q ExecReload systemd/trusted-runtime.service; then
    ok "units say what the programs take"
else bad "a unit has a flag or a signal that its program does not take"; fi

# Kubernetes.
if command -v kubectl >/dev/null; then
    if kubectl kustomize k8s >/dev/null; then ok "kubectl kustomize"; else bad "kubectl kustomize"; fi
else skip "kubectl is not installed"; fi
if python3 -c 'import yaml' 2>/dev/null; then
    if python3 k8s/check.py; then ok "k8s manifests"; else bad "k8s manifests"; fi
else skip "python3 with PyYAML is not installed; k8s manifests are not checked"; fi

[ "$failures" -eq 0 ] || { echo "check: $failures failed"; exit 1; }
echo "check: passed"
