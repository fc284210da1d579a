#!/usr/bin/env bash
# Builds the image of Signalbox, and those base images of the compose file that are missing and cannot be pulled.
#
#   SIGNALBOX_BINARY=path   packs this `signalbox`, which must be built for this machine's C library or an older one;
#                           nothing is compiled
#
# Exits with 3 if base images can be neither pulled nor built from packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

export RUST_IMAGE=${RUST_IMAGE:-rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082}
export BASE_IMAGE=${BASE_IMAGE:-gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f}
export POSTGRES_IMAGE=${POSTGRES_IMAGE:-postgres:15-bookworm@sha256:539ceaaae49b3a7c8a04467cf00cc6788d8e3f1675df41860d86eebc4c40524f}
export NATS_IMAGE=${NATS_IMAGE:-nats:2.15.1-alpine}
image=${SIGNALBOX_IMAGE:-signalbox:$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}

say() { printf 'images: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

# Prefers a Docker client with BuildKit, which builds only the needed stages.
has_buildkit() {
    "$1" buildx version >/dev/null 2>&1 || "$1" --version 2>/dev/null | grep -Eq 'version (19|20)\.'
}
export DOCKER=${DOCKER:-docker}
for candidate in "$DOCKER" /usr/bin/docker; do
    if has_buildkit "$candidate"; then
        DOCKER=$candidate
        export DOCKER_BUILDKIT=1
        break
    fi
done
"$DOCKER" version >/dev/null 2>&1 || fail "no Docker engine answers: start one (Debian: apt-get install docker.io), or set DOCKER_HOST"

# Uses an existing image, else pulls it, else builds it.
bases=(nats:"$NATS_IMAGE" postgres:"$POSTGRES_IMAGE" base:"$BASE_IMAGE")
[ -n "${SIGNALBOX_BINARY:-}" ] || bases+=(rust:"$RUST_IMAGE")
missing=()
for base in "${bases[@]}"; do
    name=${base#*:}
    "$DOCKER" image inspect "$name" >/dev/null 2>&1 || timeout 300 "$DOCKER" pull --quiet "$name" >/dev/null 2>&1 ||
        missing+=("${base%%:*}")
done
# An image built here has no digest, so its name has none; compose reads the name from .env, the tests from made.env.
made=.tools/images/made.env
mkdir -p "${made%/*}" && : >"$made"
for base in "${missing[@]}"; do
    variable=${base^^}_IMAGE
    printf -v "$variable" %s "${!variable%@*}"
    printf '%s=%s\n' "$variable" "${!variable}" >>"$made"
done
missing_still=()
for base in "${missing[@]}"; do
    variable=${base^^}_IMAGE
    "$DOCKER" image inspect "${!variable}" >/dev/null 2>&1 || missing_still+=("$base")
done
[ "${#missing_still[@]}" = 0 ] || deploy/images/offline.sh "${missing_still[@]}" || exit
if [ -e .env ]; then
    while IFS= read -r line; do
        case $line in POSTGRES_IMAGE=* | NATS_IMAGE=*) grep -q "^${line%%=*}=" .env || printf '%s\n' "$line" >>.env ;; esac
    done <"$made"
fi

# A compilation takes long, so its output is shown.
say "building $image"
arguments=(--build-arg "RUST_IMAGE=$RUST_IMAGE" --build-arg "BASE_IMAGE=$BASE_IMAGE")
if [ -n "${SIGNALBOX_BINARY:-}" ]; then
    [ "${DOCKER_BUILDKIT:-0}" = 1 ] || fail "SIGNALBOX_BINARY takes a Docker client with BuildKit"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    install -m 0755 "$SIGNALBOX_BINARY" "$folder/signalbox"
    tar --numeric-owner --owner=0 --group=0 -C "$folder" -c signalbox | "$DOCKER" import - signalbox-binaries:local >/dev/null
    arguments+=(--quiet --build-arg BINARIES=signalbox-binaries:local)
fi
"$DOCKER" build --tag "$image" --file deploy/Dockerfile "${arguments[@]}" . >/dev/null

# Made once, by the program itself: public keys for NATS, their seeds for the orchestrator.
if [ -e .env ] && ! grep -q '^NATS_CALLOUT_ISSUER=.' .env; then
    keys=$("$DOCKER" run --rm --network none --read-only "$image" nats-keys)
    sed -i '/^NATS_CALLOUT_/d' .env
    printf '%s\n' "$keys" >>.env
fi

bytes() { "$DOCKER" image inspect --format '{{.Size}}' "$1"; }
say "$image is $(bytes "$image" | numfmt --to=iec), $(($(bytes "$image") - $(bytes "$BASE_IMAGE"))) bytes over its base"
