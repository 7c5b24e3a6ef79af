#!/usr/bin/env bash
# Installs one role on this host: programs, units, users, directories and example configurations. May be run again: programs
# and units are replaced, configurations that exist are never touched (the new one is put beside it as NAME.new).
set -euo pipefail

usage() {
    cat <<'EOF'
install.sh --role evaluator|runtime|client [options]

  --role ROLE       evaluator: accelerator's host; runtime: confidential VM; client: user's host
  --binaries DIR    where the programs were built (default: target/release beside deploy/)
  --prefix DIR      programs go to DIR/bin (default: /usr/local)
  --destdir DIR     install below DIR, for packages and images; nothing on this host is touched
EOF
}

fail() {
    printf 'install: %s\n' "$1" >&2
    exit "${2:-1}"
}

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
role='' prefix=/usr/local destdir='' binaries=$here/../target/release
while [ $# -gt 0 ]; do
    case $1 in
        --role | --prefix | --destdir | --binaries)
            [ $# -ge 2 ] || fail "$1 needs a value" 2
            case $1 in
                --role) role=$2 ;;
                --prefix) prefix=$2 ;;
                --destdir) destdir=${2%/} ;;
                --binaries) binaries=$2 ;;
            esac
            shift 2
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) usage >&2; fail "unknown argument $1" 2 ;;
    esac
done
[[ $prefix == /* ]] || fail "--prefix is $prefix, expected an absolute path" 2

programs=() units=() enable=() configs=() scripts=()
case $role in
    evaluator)
        programs=(gpu-evaluator) units=(gpu-evaluator.service) enable=(gpu-evaluator.service)
        configs=(gpu-evaluator.toml)
        ;;
    runtime)
        programs=(trusted-runtime bifrost-quote-helper)
        units=(trusted-runtime.service bifrost-quote.service bifrost-quote.socket)
        enable=(bifrost-quote.socket trusted-runtime.service)
        configs=(trusted-runtime.toml) scripts=(azure-evidence.sh)
        ;;
    client)
        programs=(bifrost) units=(bifrost-proxy.service bifrost-release-key.service bifrost-release-key.timer)
        enable=(bifrost-proxy.service) configs=(proxy.toml client.env) scripts=(release-key.sh)
        ;;
    *) usage >&2; fail "role is '$role', expected evaluator, runtime or client" 2 ;;
esac

# Everything is looked at before anything is written.
for program in "${programs[@]}"; do
    [ -x "$binaries/$program" ] || fail "$binaries/$program is not there: cargo build --release --locked"
done
if [ -z "$destdir" ]; then
    [ "$(id -u)" -eq 0 ] || fail "must run as root, or with --destdir"
    command -v systemctl >/dev/null || fail "no systemctl on this host"
    version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 250 ] || fail "systemd is ${version:-unknown}, expected 250 or later (LoadCredential, %d)"
fi

put() { install -D -m "$1" -- "$2" "$destdir$3"; }

# $1 source, $2 destination: not over a file that somebody changed.
put_config() {
    local to=$destdir$2
    if [ ! -e "$to" ]; then
        put 0644 "$1" "$2"
        echo "new       $2"
    elif cmp -s -- "$1" "$to"; then
        rm -f -- "$to.new"
        echo "unchanged $2"
    else
        put 0644 "$1" "$2.new"
        echo "kept      $2 (the example of this version is $2.new)"
    fi
}

for program in "${programs[@]}"; do put 0755 "$binaries/$program" "$prefix/bin/$program"; done
for script in "${scripts[@]}"; do put 0755 "$here/$script" "$prefix/lib/bifrost/$script"; done
staged=$(mktemp -d)
trap 'rm -rf -- "$staged"' EXIT
for unit in "${units[@]}"; do
    sed "s|/usr/local/|$prefix/|g" "$here/systemd/$unit" >"$staged/$unit"
    put 0644 "$staged/$unit" "/etc/systemd/system/$unit"
    if [ -d "$here/systemd/$unit.d" ]; then
        for example in "$here/systemd/$unit.d"/*.example; do
            put 0644 "$example" "/etc/systemd/system/$unit.d/$(basename -- "$example")"
        done
    fi
done
put 0644 "$here/sysusers.d/bifrost.conf" /usr/lib/sysusers.d/bifrost.conf
put 0644 "$here/tmpfiles.d/bifrost.conf" /usr/lib/tmpfiles.d/bifrost.conf
put 0644 "$here/README.md" /usr/share/doc/bifrost/deploy/README.md
for config in "${configs[@]}"; do put_config "$here/examples/$config" "/etc/bifrost/$config"; done

if [ -n "$destdir" ]; then
    echo "installed below $destdir; on the host run systemd-sysusers, systemd-tmpfiles --create and systemctl daemon-reload"
else
    systemd-sysusers
    systemd-tmpfiles --create bifrost.conf
    systemctl daemon-reload
    echo "installed; next: certificates and keys (README.md), then systemctl enable --now ${enable[*]}"
fi
