#!/usr/bin/env bash
# Passes all tests, after setup.sh: those in a booted container (tests/e2e) run beside all others, for they are
# a world of their own and mostly wait. Their output comes in one piece, after that of the others.
#
#   test.sh           fails when a test of either part fails, and when either part has none
#   test.sh FOLDER    also writes FOLDER/all.xml and FOLDER/e2e.xml, JUnit reports of the two parts
set -uo pipefail

# A function, so that bash has read it all before an edit can change it.
main() {
  cd "$(dirname "$0")/../.."
  reports=${1:-}
  # Workers may not write to the checkout, so each of them would compile what it loads, some hundred times.
  .venv/bin/python -m compileall -q lightagentd tools || exit 1

  # A folder of its own: a pytest that starts closes the folder that all of them share, and some tests open it.
  temp=$(mktemp -d)
  log=$temp/log
  # bash lets what runs in the background ignore Ctrl-C, and then the container would go on.
  env --default-signal=INT .venv/bin/python -m pytest tests/e2e -o cache_dir=.cache/pytest-e2e \
    --basetemp="$temp/pytest" ${reports:+"--junitxml=$reports/e2e.xml"} >"$log" 2>&1 &
  beside=$!
  trap '[ -z "$beside" ] || { kill -INT "$beside" && wait "$beside"; }; rm -rf "$temp"' EXIT
  trap 'exit 130' INT TERM

  .venv/bin/python -m pytest --ignore=tests/e2e ${reports:+"--junitxml=$reports/all.xml"} </dev/null
  all=$?
  echo "tests/e2e:"
  wait "$beside"
  e2e=$?
  beside=""
  cat "$log"
  if [ "$all" -ne 0 ] || [ "$e2e" -ne 0 ]; then
    echo "Tests have failed: see above (pytest's statuses: $all, and $e2e in tests/e2e)." >&2
    exit 1
  fi
}

main "$@"
exit
