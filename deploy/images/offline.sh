#!/usr/bin/env bash
# offline.sh NAME...: builds base images under the names of the public ones, for machines that reach no image registry.
# NAME is nats, postgres, base or rust; make.sh sets the images' names in the environment.
#
# The images are built from Debian's packages (debootstrap, as root), from the nats-server that `make provision` fetched, and
# from the Rust toolchain of this machine. They have only those features of the public images that this project uses.
# DEBIAN_MIRROR overrides debootstrap's default mirror. Exits with 3 if a part of the images cannot be fetched.
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${DOCKER:=docker}" "${NATS_IMAGE:?}" "${POSTGRES_IMAGE:?}" "${BASE_IMAGE:?}" "${RUST_IMAGE:?}"
suite=bookworm

say() { printf 'images: %s\n' "$*"; }
[ "$(id -u)" = 0 ] || { say "making base images takes root: debootstrap" >&2; exit 3; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# fetching WHAT COMMAND...: runs a command that needs the network; exits with 3 if it fails.
fetching() {
    local what=$1
    shift
    "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; say "$what cannot be fetched" >&2; exit 3; }
}

export DEBIAN_FRONTEND=noninteractive
if ! command -v debootstrap >/dev/null || ! command -v busybox >/dev/null; then
    fetching "the list of packages" apt-get update -qq
    fetching "debootstrap" apt-get install -y -qq --no-install-recommends debootstrap busybox-static
fi

# Puts a minimal Debian into $work/debian, once. An archive caches it, since fetching it takes the longest.
debian() {
    local kept=.tools/images/$suite.tar
    [ ! -d "$work/debian" ] || return 0
    mkdir -p "$work/debian" .tools/images
    if [ -f "$kept" ]; then
        tar --numeric-owner -C "$work/debian" -x <"$kept"
        return
    fi
    say "fetching a plain Debian $suite"
    fetching "a plain Debian" debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/debian" \
        ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
    rm -rf "$work/debian"/var/{cache/apt/archives,lib/apt/lists}/*
    tar --numeric-owner -C "$work/debian" -c . >"$kept.new"
    mv "$kept.new" "$kept"
}

# in_debian FOLDER COMMAND...: runs a command in a Debian folder.
in_debian() {
    local folder=$1
    shift
    cp /etc/resolv.conf "$folder/etc/resolv.conf"
    chroot "$folder" "$@"
}

# install_in FOLDER PACKAGE...: installs packages into a Debian folder.
install_in() {
    local folder=$1
    shift
    # Prevents packages from starting their services.
    printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
    chmod +x "$folder/usr/sbin/policy-rc.d"
    fetching "the list of packages" in_debian "$folder" apt-get update -qq
    fetching "$*" in_debian "$folder" apt-get -o Dpkg::Options::=--force-unsafe-io install -y -qq --no-install-recommends "$@"
    rm -rf "$folder"/var/{cache/apt/archives,lib/apt/lists}/* "$folder"/usr/share/{doc,man,info,locale}/* \
        "$folder/usr/sbin/policy-rc.d"
}

# import FOLDER NAME CHANGE...: imports a folder as an image.
import() {
    local folder=$1 name=$2 changes=() change
    shift 2
    for change in "$@"; do changes+=(--change "$change"); done
    tar --numeric-owner -C "$folder" -c . | "$DOCKER" import "${changes[@]}" - "$name" >/dev/null
    say "made $name, $("$DOCKER" image inspect --format '{{.Size}}' "$name" | numfmt --to=iec)"
}

# nats-server and busybox, whose wget the health check uses.
make_nats() {
    local server=${SIGNALBOX_NATS_SERVER:-$(command -v nats-server || echo .tools/bin/nats-server)} folder=$work/nats applet
    [ -x "$server" ] || { say "nats-server is missing: make provision" >&2; return 1; }
    mkdir -p "$folder"/{bin,etc,usr/local/bin} && install -d -m 1777 "$folder/tmp"
    install -m 0755 "$server" "$folder/usr/local/bin/nats-server"
    install -m 0755 "$(command -v busybox)" "$folder/bin/busybox"
    for applet in sh chown mv wget; do ln -s busybox "$folder/bin/$applet"; done
    printf 'root:x:0:0::/:/bin/sh\nnats:x:1000:1000::/:/bin/sh\n' >"$folder/etc/passwd"
    import "$folder" "$NATS_IMAGE" 'ENTRYPOINT []' 'CMD ["nats-server"]' 'EXPOSE 4222 6222 8222' \
        'ENV PATH=/usr/local/bin:/bin'
}

# Debian's Postgres. postgres-entrypoint.sh starts it as the public image does.
make_postgres() {
    local folder=$work/postgres major=15
    debian
    cp -a "$work/debian" "$folder"
    # The public image has the same user id.
    in_debian "$folder" groupadd --system --gid 999 postgres
    in_debian "$folder" useradd --system --uid 999 --gid 999 --home-dir /var/lib/postgresql --shell /bin/bash postgres
    mkdir -p "$folder/etc/postgresql-common/createcluster.d"
    printf 'create_main_cluster = false\n' >"$folder/etc/postgresql-common/createcluster.d/image.conf"
    install_in "$folder" "postgresql-$major"
    install -m 0755 deploy/images/postgres-entrypoint.sh "$folder/usr/local/bin/docker-entrypoint.sh"
    mkdir "$folder/docker-entrypoint-initdb.d"
    install -d -o 999 -g 999 -m 0700 "$folder/var/lib/postgresql/data"
    install -d -o 999 -g 999 -m 0775 "$folder/run/postgresql"
    import "$folder" "$POSTGRES_IMAGE" 'ENTRYPOINT ["docker-entrypoint.sh"]' 'CMD ["postgres"]' 'EXPOSE 5432' \
        'VOLUME /var/lib/postgresql/data' 'ENV LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data' \
        "ENV PATH=/usr/lib/postgresql/$major/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

# The C library only: no shell, no packages.
make_base() {
    local folder=$work/base package
    debian
    mkdir -p "$folder" "$work/debian/packages"
    fetching "the list of packages" in_debian "$work/debian" apt-get update -qq
    fetching "the C library" in_debian "$work/debian" sh -c 'cd /packages && apt-get download -qq base-files libc6 libgcc-s1 tzdata'
    for package in "$work"/debian/packages/*.deb; do dpkg-deb --extract "$package" "$folder"; done
    rm -rf "$work/debian/packages" "$folder"/usr/share/{doc,man,lintian,bug,info}
    install -D -m 0644 "$work/debian/etc/ssl/certs/ca-certificates.crt" "$folder/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n' >"$folder/etc/passwd"
    printf 'root:x:0:\nnonroot:x:65532:\n' >"$folder/etc/group"
    install -d -o 65532 -g 65532 -m 0700 "$folder/home/nonroot"
    install -d -m 1777 "$folder/tmp"
    import "$folder" "$BASE_IMAGE" 'USER 65532' 'WORKDIR /home/nonroot' \
        'ENV PATH=/usr/local/bin:/usr/bin:/bin SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt'
}

# This machine's toolchain and the crates that it has fetched, so that a build in this image fetches nothing.
make_rust() {
    local folder=$work/rust sysroot registry=${CARGO_HOME:-$HOME/.cargo}/registry
    sysroot=$(rustc --print sysroot)
    cargo fetch --quiet --locked
    debian
    cp -a "$work/debian" "$folder"
    install_in "$folder" gcc libc6-dev make
    mkdir -p "$folder/usr/local/rust" "$folder/usr/local/cargo/registry"
    cp -a "$sysroot/bin" "$sysroot/lib" "$folder/usr/local/rust/"
    cp -a "$registry/cache" "$registry/index" "$folder/usr/local/cargo/registry/"
    import "$folder" "$RUST_IMAGE" 'CMD ["sh"]' \
        'ENV CARGO_HOME=/usr/local/cargo CARGO_NET_OFFLINE=true PATH=/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
}

for name in "$@"; do
    "make_$name"
done
