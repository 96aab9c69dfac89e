#!/bin/sh
# Proves the server with programs of others that need Node.js 22, which npm brings: the inspector, the TypeScript
# SDK (1 and 2), and the conformance suite over HTTP (over_http.py). CI does not run it: it installs 270 MB, which
# takes 20 s, and then takes 70 s.
#
#     tests/mcp_server/by_hand.sh SOCKET [FOLDER]
#
# SOCKET is that of a daemon whose agent ops may change things ([worker] change_agents); FOLDER keeps the packages.
set -eu
socket=$1
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
folder=${2:-$(mktemp -d)}
mkdir -p "$folder"
PATH=$folder/node_modules/.bin:$repository/.venv/bin:$PATH
cd "$folder"
[ -f package.json ] || npm init -y >/dev/null
npm install --silent --no-audit --no-fund node@22 @modelcontextprotocol/inspector@2 \
  @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/sdk@1 @modelcontextprotocol/client@2
failed=0

echo '== inspector'
inspect() {
  if mcp-inspector --cli lactl mcp --socket "$socket" "$@" >said 2>&1; then echo "ok   $*"; else
    echo "FAIL $*"
    cat said
    failed=1
  fi
}
inspect --method tools/list
inspect --method tools/call --tool-name proc_info --tool-arg pid=1
inspect --method prompts/list
inspect --method prompts/get --prompt-name disk-check --prompt-args request=look
inspect --method resources/list
inspect --method resources/templates/list
inspect --method resources/read --uri lightagent://events
inspect --method logging/setLevel --log-level info

cp "$here/ts_client.mjs" .
for sdk in 1 2; do
  echo "== TypeScript SDK $sdk"
  node ts_client.mjs $sdk "$socket" || failed=1
done

echo '== conformance'
(cd "$repository" && exec .venv/bin/python -m tests.mcp_server.over_http "$socket") >url &
bridge=$!
trap 'kill $bridge' EXIT
until [ -s url ]; do sleep 0.2; done
conform() {
  conformance server --url "$(cat url)" --spec-version "$1" --scenario "$2" >said 2>&1 || true
  if grep -q ', 0 failed' said; then echo "ok   $1 $2"; else
    echo "     $1 $2:$(sed -n 's/^ *Error: /\n       /p' said)"
  fi
}
for scenario in server-initialize ping logging-set-level completion-complete tools-list prompts-list resources-list; do
  conform 2025-11-25 $scenario
done
for scenario in server-stateless caching completion-complete tools-list prompts-list resources-list \
  sep-2164-resource-not-found input-required-result-unsupported-methods; do
  conform 2026-07-28 $scenario
done
echo 'What server-stateless misses are tools for its tests alone, and a header that a gateway checks.'
exit $failed
