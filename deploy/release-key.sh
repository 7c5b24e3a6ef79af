#!/usr/bin/env bash
# Verifies a runtime, shows what it is and under which policy, and releases a tenant's key to it.
#
# For people, cron and systemd. Exit: 0 released (or, with --once, there was nothing to do), 1 rejected, 2 usage,
# 3 could not be checked (network, clock, collateral). Without --yes a person must answer on a terminal.
set -euo pipefail

usage() {
    cat <<'EOF'
release-key.sh --runtime URL --policy FILE --key FILE [options]

  --runtime URL      attested://HOST:7600
  --policy FILE      what the runtime must be
  --key FILE         the tenant's key (bifrost keygen)
  --model-key FILE   the key of an encrypted model, released with it
  --once FILE        do nothing if FILE says that this key was released to this process; keep FILE up to date
  --yes              do not ask
  --bifrost FILE     the program, if it is not in PATH
EOF
}

fail() {
    local code=$1
    shift
    printf 'release-key: %s\n' "$*" >&2
    exit "$code"
}

runtime='' policy='' key='' model_key='' once='' bifrost=bifrost assume_yes=no
while [ $# -gt 0 ]; do
    case $1 in
        --runtime | --policy | --key | --model-key | --once | --bifrost)
            [ $# -ge 2 ] || fail 2 "$1 needs a value"
            case $1 in
                --runtime) runtime=$2 ;;
                --policy) policy=$2 ;;
                --key) key=$2 ;;
                --model-key) model_key=$2 ;;
                --once) once=$2 ;;
                --bifrost) bifrost=$2 ;;
            esac
            shift 2
            ;;
        --yes)
            assume_yes=yes
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) usage >&2; fail 2 "unknown argument $1" ;;
    esac
done
[ -n "$runtime" ] || fail 2 "--runtime is missing"
[ -n "$policy" ] || fail 2 "--policy is missing"
[ -n "$key" ] || fail 2 "--key is missing"
[ -r "$policy" ] || fail 2 "policy $policy cannot be read"
[ -r "$key" ] || fail 2 "key $key cannot be read"
[ -z "$model_key" ] || [ -r "$model_key" ] || fail 2 "model key $model_key cannot be read"
command -v "$bifrost" >/dev/null || fail 2 "program $bifrost is not there"
if [ "$assume_yes" = no ] && ! { [ -t 0 ] && [ -t 1 ]; }; then
    fail 2 "nobody to ask: run it on a terminal, or with --yes"
fi

# Which process is there, by a verification of its own; the release below is bound to this one.
status=0
report=$("$bifrost" verify "$runtime" --policy "$policy" --json) || status=$?
if [ "$status" -ne 0 ]; then
    printf '%s\n' "$report"
    case $status in
        1 | 3) exit "$status" ;;
        *) fail "$status" "bifrost verify ended with $status" ;;
    esac
fi
instance=$(printf '%s' "$report" | tr -d '\n' | sed -n 's/.*"instance"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p')
[[ $instance =~ ^[0-9A-Za-z_-]{8,128}$ ]] || fail 3 "the report names no instance"

# A restarted runtime is another instance, and a rotated key is another key, of the model as well.
released="$instance $(sha256sum -- "$key" ${model_key:+"$model_key"} | cut -d ' ' -f 1 | paste -sd ' ')"
note() {
    local new
    new=$(mktemp -- "$once.XXXXXX")
    printf '%s\n' "$released" >"$new"
    mv -f -- "$new" "$once"
}
if [ -n "$once" ] && [ -r "$once" ] && [ "$(cat -- "$once")" = "$released" ]; then
    echo "release-key: $runtime has the key already (instance $instance)"
    exit 0
fi

# Released before by other hands, or rotated: whoever holds the key is let in.
if [ -n "$once" ] && "$bifrost" release-key --runtime "$runtime" --policy "$policy" --tenant-key "$key" --held >/dev/null 2>&1; then
    echo "release-key: $runtime holds the key already (instance $instance)"
    note
    exit 0
fi

# For eyes: the table of what was expected and found, and the policy itself.
"$bifrost" verify "$runtime" --policy "$policy" || exit $?
printf '\npolicy %s (sha256 %s)\n' "$policy" "$(sha256sum -- "$policy" | cut -d ' ' -f 1)"
sed 's/^/    /' -- "$policy"
printf '\nruntime  %s\ninstance %s\nkey      %s\n' "$runtime" "$instance" "$key"
[ -z "$model_key" ] || printf 'model key %s\n' "$model_key"

if [ "$assume_yes" = no ]; then
    read -r -p "Release the key to this runtime? Type yes: " answer
    [ "$answer" = yes ] || fail 1 "not released"
fi

release=("$bifrost" release-key --runtime "$runtime" --policy "$policy" --tenant-key "$key" --instance "$instance" --yes)
[ -z "$model_key" ] || release+=(--model-key "$model_key")
"${release[@]}"

if [ -n "$once" ]; then note; fi
