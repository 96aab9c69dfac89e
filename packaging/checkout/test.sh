#!/usr/bin/env bash
# Passes all tests, after setup.sh, and looks at style and types beside them. Some more processes than there are
# processors run the tests, for most tests wait more than they work; tests/distribution.py says which runs where.
#
#   test.sh           fails when a test fails, when none ran, and when style or types are wrong
#   test.sh FOLDER    also writes FOLDER/all.xml, a JUnit report, and pictures of the page in Cockpit to FOLDER/page
set -uo pipefail

declare -A groups=()
temp=

# beside NAME COMMAND...: begin a command in a process group of its own, which Ctrl-C ends as a whole.
beside() {
  local name=$1
  shift
  set -m
  env --default-signal=INT "$@" </dev/null &
  groups[$name]=$!
  set +m
}

# finish NAME: wait for it, and return how it ended.
finish() {
  local group=${groups[$1]}
  wait "$group"
  local status=$?
  unset "groups[$1]"
  return "$status"
}

end() {
  for group in "${groups[@]}"; do
    kill -INT -- "-$group" 2>/dev/null && wait "$group" 2>/dev/null
  done
  rm -rf "$temp"
}

# A function, so that bash has read it all before an edit can change it.
main() {
  cd "$(dirname "$0")/../.."
  local reports=${1:-} processes=$(($(nproc) + 1)) wrong=0
  temp=$(mktemp -d)
  trap end EXIT
  trap 'exit 130' INT TERM
  beside lint make --no-print-directory lint >"$temp/lint.log" 2>&1

  if [ -n "$reports" ]; then
    mkdir -p "$reports/page"
    LIGHTAGENT_SCREENSHOTS=$(realpath "$reports/page")
    export LIGHTAGENT_SCREENSHOTS
  fi

  # Each of the processes would compile what it loads, and so would each worker, which may not write here.
  unset PYTHONDONTWRITEBYTECODE
  .venv/bin/python -m compileall -q -j 0 lightagentd tools || exit 1
  # A folder of its own: a pytest that starts closes the folder that all of them share, and some tests open it.
  beside tests .venv/bin/python -m pytest -n "$processes" -p no:cacheprovider --basetemp="$temp/tests" \
    ${reports:+"--junitxml=$reports/all.xml"}
  finish tests || wrong=1
  finish lint || wrong=1
  cat "$temp/lint.log"
  if ((wrong)); then
    echo "Tests, style or types are wrong: see above." >&2
    exit 1
  fi
}

main "$@"
exit
