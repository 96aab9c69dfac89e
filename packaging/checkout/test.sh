#!/usr/bin/env bash
# Passes all tests, after setup.sh, in three parts beside each other, for most tests wait more than they work: those
# in a booted container (tests/e2e), those of agents, workers and what runs in them, and all others. What the first
# two print comes in one piece each, after that of the others.
#
# Where no more than three tests of a part fail, these run once more at the end, alone: on a machine that three parts
# keep busy, a test may wait too briefly. Those that pass only then are named, and are to be mended all the same.
#
#   test.sh           fails when a test of a part fails (both times), and when a part has none
#   test.sh FOLDER    also writes FOLDER/{all,e2e,workers}.xml, JUnit reports of the parts
set -uo pipefail

declare -A pids=() statuses=()
temp=

# part NAME ARG...: pytest for one of the parts.
# Folders of its own: a pytest that starts closes the folder that all of them share, and some tests open it.
part() {
  local name=$1
  shift
  # bash lets what runs in the background ignore Ctrl-C, and then the container would go on.
  exec env --default-signal=INT .venv/bin/python -m pytest -o "cache_dir=.cache/pytest-$name" \
    --basetemp="$temp/$name" "$@" </dev/null
}

# beside NAME FOLDER...: begin a part in the background.
beside() {
  part "$@" ${reports:+"--junitxml=$reports/$1.xml"} >"$temp/$1.log" 2>&1 &
  pids[$1]=$!
}

# failures NAME: what failed in a part, a line each.
failures() {
  grep -E '^(FAILED|ERROR) ' "$temp/$1.log"
}

# again NAME: run the tests of a part that failed once more, if they are few and all others ran.
again() {
  local count
  count=$(failures "$1" | wc -l)
  ((statuses[$1] == 1 && count >= 1 && count <= 3)) || return 1
  (part "$1" --last-failed --last-failed-no-failures=none) || return 1
  echo "Passed only at the second try:"
  failures "$1"
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
  (part all "${others[@]}" ${reports:+"--junitxml=$reports/all.xml"}) | tee "$temp/all.log"
  statuses[all]=$?
  for name in workers e2e; do
    wait "${pids[$name]}"
    statuses[$name]=$?
    unset "pids[$name]"
    echo "$name:"
    cat "$temp/$name.log"
  done
  failed=""
  for name in all workers e2e; do
    ((statuses[$name] == 0)) || again "$name" || failed+=" $name"
  done
  if [ -n "$failed" ]; then
    # Once more, a few of each part: of a long output, only the end may be kept.
    for name in $failed; do
      failures "$name" | head -n 20
    done
    echo "Tests have failed: see above, in the parts$failed." >&2
    exit 1
  fi
}

main "$@"
exit
