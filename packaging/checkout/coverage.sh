#!/usr/bin/env bash
# Runs all tests but those in a booted container, and prints the lines and branches of the package that none of them
# executes, in whatever process: the daemon, lactl, and workers that may not write get a folder that they may.
#
#   coverage.sh [PATH...]     with paths, the tests in them alone
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$(mktemp -d)
hook=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/coverage-of-tests.pth
trap 'rm -rf "$data" "$hook"' EXIT
trap 'exit 130' INT TERM
chmod 1777 "$data"

# Processes of the tests begin with an environment of their own, so the hook cannot ask a variable.
cat >"$data/settings" <<END
[run]
branch = true
parallel = true
sigterm = true
patch = _exit, fork
source = $PWD/lightagentd
data_file = $data/covered
END
chmod 644 "$data/settings"
echo "import os; os.environ['COVERAGE_PROCESS_START'] = '$data/settings'; import coverage; coverage.process_startup()" \
  >"$hook"

[ $# -gt 0 ] || set -- --ignore=tests/e2e tests
.venv/bin/python -m pytest -q -n "$(($(nproc) * 2 + 1))" -p no:cacheprovider "$@" || true
rm "$hook"
.venv/bin/python -m coverage combine --quiet --rcfile="$data/settings" "$data"
.venv/bin/python -m coverage report --rcfile="$data/settings" --show-missing --skip-covered
