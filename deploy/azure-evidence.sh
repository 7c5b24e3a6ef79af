#!/usr/bin/env bash
# Evidence of a confidential VM on Azure, for attestation.source = "external_command".
#
# Below Azure's paravisor a guest cannot choose the report data of a quote: it is that of the boot and covers the virtual
# TPM's attestation key. What is fresh is a TPM quote over SHA-256 of the 64 bytes on standard input. Needs tpm2-tools, curl,
# od, and access to /dev/tpmrm0 (group tss). Written after Azure's documentation; not run on Azure yet.
#
#   azure-evidence.sh tdx|sev_snp      64 bytes in, lines of "bifrost-evidence/1" out
set -euo pipefail
umask 077

fail() {
    printf 'azure-evidence: %s\n' "$*" >&2
    exit 1
}

# NV index of the HCL report, the attestation key, and where the metadata service makes quotes of TD reports.
readonly hcl_index=0x01400001 key_handle=0x81000003
readonly quote_url=http://169.254.169.254/acc/tdquote
# In the HCL report: a header of 32 bytes, then the hardware's report. A TD report has 1024 bytes, an SNP report 1184.
readonly report_at=32

[ $# -eq 1 ] || fail "usage: azure-evidence.sh tdx|sev_snp"
platform=$1
case $platform in tdx | sev_snp) ;; *) fail "platform is $platform, expected tdx or sev_snp" ;; esac
for tool in tpm2_nvread tpm2_quote tpm2_pcrread curl od sha256sum base64; do
    command -v "$tool" >/dev/null || fail "$tool is not installed"
done

dir=$(mktemp -d)
trap 'rm -rf -- "$dir"' EXIT
cd "$dir"
export TPM2TOOLS_TCTI="device:/dev/tpmrm0"

head -c 65 >report_data
[ "$(stat -c %s report_data)" -eq 64 ] || fail "standard input has not 64 bytes"
nonce=$(sha256sum report_data | cut -d ' ' -f 1)

tpm2_nvread -C o "$hcl_index" -o hcl_report
[ "$(head -c 4 hcl_report)" = HCLA ] || fail "NV index $hcl_index holds no HCL report"
tpm2_quote -Q -c "$key_handle" -l sha256:all -q "$nonce" -g sha256 -m tpm_quote -s tpm_signature -f plain
tpm2_pcrread -Q sha256:all -o pcrs
[ "$(stat -c %s pcrs)" -eq 768 ] || fail "expected 24 SHA-256 PCRs"

report() { tail -c +$((report_at + 1)) hcl_report | head -c "$1"; }
case $platform in
    tdx)
        encoded=$(report 1024 | base64 -w 0 | tr '+/' '-_' | tr -d '=')
        answer=$(curl -sS --fail --max-time 30 --noproxy '*' -H 'Metadata: true' -H 'Content-Type: application/json' \
            --data "{\"report\":\"$encoded\"}" "$quote_url")
        encoded=$(sed -n 's/.*"quote"[[:space:]]*:[[:space:]]*"\([A-Za-z0-9_=-]*\)".*/\1/p' <<<"$answer")
        [ -n "$encoded" ] || fail "the metadata service returned no quote"
        encoded=$(tr -d '=' <<<"$encoded" | tr '_-' '/+')
        while [ $((${#encoded} % 4)) -ne 0 ]; do encoded+='='; done
        base64 -d <<<"$encoded" >quote
        ;;
    sev_snp) report 1184 >quote ;;
esac

field() {
    printf '%s ' "$1"
    od -An -v -tx1 "$1" | tr -d ' \n'
    printf '\n'
}
echo bifrost-evidence/1
for name in quote hcl_report tpm_quote tpm_signature pcrs; do field "$name"; done
