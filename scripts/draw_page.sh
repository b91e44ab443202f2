#!/usr/bin/env bash
# Makes docs/timeline-page.png: the timeline page of `slip lab weights` on a simulated H200, rendered by Chromium. The trace
# is in virtual time, so all machines with the same fonts make the same picture. Needs a built release preset.
# usage: scripts/draw_page.sh [OUTPUT.png]
set -euo pipefail
cd "$(dirname "$0")/.."
output=$(realpath -m "${1:-docs/timeline-page.png}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
build/release/slip lab weights --device sim:h200 --html "$folder/weights.html" >/dev/null
bash tests/page/run.sh picture.js "$folder/weights.html" "$output" "load 3" "stream 48"
ls -l "$output"
