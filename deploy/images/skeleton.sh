#!/bin/sh
# skeleton.sh SOURCE SKELETON: the workspace with empty crates, so that building it builds the dependencies and nothing else.
set -eu
source=$1
skeleton=$2
cd "$source"
find . -name Cargo.toml -o -name Cargo.lock | while read -r file; do
    mkdir -p "$skeleton/$(dirname "$file")"
    cp "$file" "$skeleton/$file"
done
# Every target that a crate has, by the usual places; what Cargo.toml names apart from those is a folder of its own.
find . -path '*/src/lib.rs' -o -path '*/src/main.rs' -o -path '*/src/bin/*.rs' -o -path './tests/*/main.rs' \
    -o -path '*/benches/*/main.rs' |
    while read -r file; do
        mkdir -p "$skeleton/$(dirname "$file")"
        case $file in
        */lib.rs) : >"$skeleton/$file" ;;
        *) echo 'fn main() {}' >"$skeleton/$file" ;;
        esac
    done
# Timestamps are part of a layer's content.
find "$skeleton" -exec touch --date '2000-01-01' {} +
