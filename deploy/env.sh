#!/usr/bin/env bash
# Creates .env from .env.example, with random secrets, readable by its owner only. An existing .env is left unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -e .env ] || exit 0
umask 077
while IFS= read -r line; do
    case $line in
    NATS_*=random) printf '%s=p%s\n' "${line%%=*}" "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" ;;
    *=random) printf '%s=%s\n' "${line%%=*}" "$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')" ;;
    *) printf '%s\n' "$line" ;;
    esac
done <.env.example >.env.new
mv .env.new .env
echo "env: made .env with secrets of its own"
