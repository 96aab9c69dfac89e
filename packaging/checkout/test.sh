#!/usr/bin/env bash
# Passes all tests, after setup.sh, in three parts beside each other, for most tests wait more than they work: those
# in a booted container (tests/e2e), those of agents, workers and what runs in them, and all others. What the first
# two print comes in one piece each, after that of the others.
#
#   test.sh           fails when a test of a part fails, and when a part has none
#   test.sh FOLDER    also writes FOLDER/{all,e2e,workers}.xml, JUnit reports of the parts
set -uo pipefail

declare -A pids=()
temp=

# beside NAME FOLDER...: begin a part in the background.
beside() {
  local name=$1
  shift
  # Folders of its own: a pytest that starts closes the folder that all of them share, and some tests open it.
  # bash lets what runs in the background ignore Ctrl-C, and then the container would go on.
  env --default-signal=INT .venv/bin/python -m pytest "$@" -o "cache_dir=.cache/pytest-$name" \
    --basetemp="$temp/$name" ${reports:+"--junitxml=$reports/$name.xml"} >"$temp/$name.log" 2>&1 </dev/null &
  pids[$name]=$!
}

end() {
  for name in "${!pids[@]}"; do
    kill -INT "${pids[$name]}" 2>/dev/null && wait "${pids[$name]}"
  done
  rm -rf "$temp"
}

# A function, so that bash has read it all before an edit can change it.
main() {
  cd "$(dirname "$0")/../.."
  reports=${1:-}
  # Workers may not write to the checkout, so each of them would compile what it loads, some hundred times.
  .venv/bin/python -m compileall -q lightagentd tools || exit 1

  temp=$(mktemp -d)
  trap end EXIT
  trap 'exit 130' INT TERM
  workers=(tests/agents tests/attacks tests/skills tests/tools tests/worker)
  beside e2e tests/e2e
  beside workers "${workers[@]}"
  others=()
  for folder in tests/e2e "${workers[@]}"; do
    others+=("--ignore=$folder")
  done
  failed=""
  .venv/bin/python -m pytest "${others[@]}" ${reports:+"--junitxml=$reports/all.xml"} </dev/null |
    tee "$temp/all.log" || failed=" all"
  for name in workers e2e; do
    wait "${pids[$name]}" || failed+=" $name"
    unset "pids[$name]"
    echo "$name:"
    cat "$temp/$name.log"
  done
  if [ -n "$failed" ]; then
    # Once more, a few of each part: of a long output, only the end may be kept.
    for name in $failed; do
      grep -E '^(FAILED|ERROR) ' "$temp/$name.log" | head -n 20
    done
    echo "Tests have failed: see above, in the parts$failed." >&2
    exit 1
  fi
}

main "$@"
exit
