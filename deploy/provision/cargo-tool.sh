#!/usr/bin/env bash
# cargo-tool.sh NAME: installs a pinned cargo tool into .tools/bin if the machine has none. Downloads the program that the
# tool's project publishes and checks its hash; compiles the tool if the download fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

tool=$1
[ -z "$("$tool" --version 2>/dev/null || true)" ] || exit 0

arch=$(uname -m)
case $tool in
    cargo-nextest)
        version=0.9.143
        declare -A hashes=(
            [x86_64]=6d891c18105ec2d33f6e441a4f92b7ccab47ba263e22055c8bb66884243f3389
            [aarch64]=0560ce0ce017f368c54b5db86588370fc03b470985490fa81200e62a657dda05)
        url=https://github.com/nextest-rs/nextest/releases/download/$tool-$version ;;
    cargo-deny)
        version=0.20.2
        declare -A hashes=(
            [x86_64]=9f12ed4c49936e09b48bf862b595cde2fe64fcbd9d74dfacac6131ca824c8d5f
            [aarch64]=995c82be0defc7a025cae49a2aa2644ce8245c9a3318fc4103907c6a285e8c7d)
        url=https://github.com/EmbarkStudios/cargo-deny/releases/download/$version ;;
    *) echo "provision: no version of $tool is pinned here" >&2; exit 1 ;;
esac
hash=${hashes[$arch]:-}
archive=$tool-$version-$arch-unknown-linux-musl.tar.gz

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$hash" ] && curl -sfL --connect-timeout 3 --max-time 120 -o "$work/$archive" "$url/$archive"; then
    echo "$hash  $work/$archive" | sha256sum --check --quiet
    tar -xzf "$work/$archive" -C "$work"
    mkdir -p .tools/bin
    install -m 0755 "$(find "$work" -type f -name "$tool")" ".tools/bin/$tool"
    echo "provision: $tool $version is in .tools/bin"
else
    echo "provision: compiling $tool $version into .tools (for minutes): $url/$archive cannot be fetched from here"
    cargo install --quiet --locked --debug --root .tools "$tool@$version"
fi
