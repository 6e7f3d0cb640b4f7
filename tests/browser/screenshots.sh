#!/usr/bin/env bash
# Draws a page in headless Chromium (Debian's package chromium) as a reader sees it: light, dark, and on a phone. Fails when
# the page complains in the browser's console.
#
#   tests/browser/screenshots.sh PAGE.html FOLDER        writes FOLDER/PAGE-light.png, PAGE-dark.png and PAGE-phone.png
set -euo pipefail
(($# == 2)) || { echo "usage: $0 PAGE.html FOLDER" >&2; exit 2; }
page=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
name=$(basename "$page" .html)
command -v chromium >/dev/null || { echo "there is no chromium: apt-get install chromium" >&2; exit 77; }
profile=$(mktemp -d /tmp/browser.XXXXXX)
trap 'rm -rf "$profile"' EXIT

# draw KIND WIDTH,HEIGHT ADDRESS OPTIONS...
draw() {
    local log=$profile/$1.log
    # As root, and without the shared memory that containers lack, Chromium needs the first two.
    timeout 120 chromium --no-sandbox --disable-dev-shm-usage --headless=new --disable-gpu --hide-scrollbars \
        --user-data-dir="$profile/data" --enable-logging=stderr --v=0 --virtual-time-budget=2000 \
        --window-size="$2" --screenshot="$folder/$name-$1.png" "${@:3}" >"$log" 2>&1 || true
    if grep 'CONSOLE' "$log" >&2; then
        echo "$page complains in the console of the browser ($1)" >&2
        exit 1
    fi
    [[ -s $folder/$name-$1.png ]] || { cat "$log" >&2; echo "no picture of $page ($1)" >&2; exit 1; }
}
draw light 1280,2000 "file://$page" --force-device-scale-factor=0.75
draw dark 1280,2000 "file://$page" --blink-settings=preferredColorScheme=0 --force-device-scale-factor=0.75
# Chromium makes no window as narrow as a phone's.
printf '<!doctype html><title>phone</title><body style="margin:0"><iframe src="%s" style="border:0;width:390px;height:2600px">' \
    "file://$page" >"$profile/phone.html"
draw phone 390,2600 "file://$profile/phone.html"
