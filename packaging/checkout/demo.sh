#!/bin/sh
# Starts a daemon of its own from the checkout, and shows it at work.
#
#   demo.sh           prompt the agent ops, then serve until Enter is pressed (at once where nobody can)
#   demo.sh shell     a shell in which lactl talks to that daemon, until it is left
#   demo.sh record    draw docs/first-prompt.svg, the picture of the README, from a real run
set -eu
cd "$(dirname "$0")/../.."
base=$(mktemp -d "${TMPDIR:-/tmp}/lightagent-demo.XXXXXX")
chmod 755 "$base"
bin=$PWD/.venv/bin
export LIGHTAGENT_SOCKET="$base/run/control.sock" LIGHTAGENT_CONFIG_DIR="$base/etc"

"$bin/lightagentd" --config-dir "$base/etc" --state-dir "$base/state" --runtime-dir "$base/run" >"$base/log" 2>&1 &
daemon=$!
finish() {
  trap - EXIT INT TERM
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" 2>/dev/null || true
  rm -rf "$base"
}
trap finish EXIT
trap 'exit 130' INT TERM

tries=0
until "$bin/lactl" status >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ "$tries" -gt 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
    echo "The daemon did not start:" >&2
    cat "$base/log" >&2
    exit 1
  fi
  sleep 0.1
done

if [ "${1:-}" = shell ]; then
  echo "The daemon serves on $LIGHTAGENT_SOCKET until you leave this shell. Try: lactl --help"
  PATH="$bin:$PATH" "${SHELL:-/bin/sh}" || true
  exit 0
fi

if [ "${1:-}" = record ]; then
  PATH="$bin:$PATH" "$bin/python" packaging/checkout/recording.py docs/first-prompt.svg \
    'lactl prompt ops "who is listening on 8080"' 'lactl events --topic agent.tool_dispatch' 'lactl audit verify'
  exit 0
fi

echo "\$ lactl prompt ops \"check disk\""
"$bin/lactl" prompt ops "check disk"
echo
echo "\$ lactl audit verify"
"$bin/lactl" audit verify
cat <<TXT

That was the real path: lactl, the daemon's socket, the agent ops, its turn, the built-in runbook model, policy,
a sandboxed worker, and every event in the history. Go on with "make shell", or by hand:

  $bin/lightagentd --state-dir /tmp/la/state --runtime-dir /tmp/la/run &
  export LIGHTAGENT_SOCKET=/tmp/la/run/control.sock
  $bin/lactl prompt ops "what is eating memory"
  $bin/lactl history
TXT
if [ -t 0 ] && [ -t 1 ]; then
  echo
  printf 'The daemon serves on %s; press Enter to stop it. ' "$LIGHTAGENT_SOCKET"
  read -r _ || true
fi
