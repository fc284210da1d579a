#!/bin/sh
# skeleton.sh SOURCE SKELETON: copies the workspace with empty crates. Building the copy builds only the dependencies.
set -eu
source=$1
skeleton=$2
cd "$source"
find . -name Cargo.toml -o -name Cargo.lock | while read -r file; do
    mkdir -p "$skeleton/$(dirname "$file")"
    cp "$file" "$skeleton/$file"
done
# Every target of a crate: Cargo's default paths, and the `main.rs` of test and bench folders.
find . -path '*/src/lib.rs' -o -path '*/src/main.rs' -o -path '*/src/bin/*.rs' -o -path './tests/*/main.rs' \
    -o -path '*/benches/*/main.rs' |
    while read -r file; do
        mkdir -p "$skeleton/$(dirname "$file")"
        case $file in
        */lib.rs) : >"$skeleton/$file" ;;
        *) echo 'fn main() {}' >"$skeleton/$file" ;;
        esac
    done
# A layer's content includes timestamps, so they are fixed.
find "$skeleton" -exec touch --date '2000-01-01' {} +
