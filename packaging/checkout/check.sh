#!/usr/bin/env bash
# Looks at style and types, and passes the tests of what changed since `main`, committed or not.
#
# A changed file in tests/ stands for itself, and lightagentd/FOLDER/NAME.py for tests/FOLDER/test_NAME.py, or, where
# there is none, for all of tests/FOLDER. Tests in a booted container are left to "make test".
set -euo pipefail
cd "$(dirname "$0")/../.."

# Names of changed files, and of those that git does not know yet.
changed() {
  git diff --name-only --diff-filter=d "$(git merge-base main HEAD)"
  git ls-files --others --exclude-standard
}

# The tests of one file, as far as they exist.
tests_of() {
  local folder name
  case $1 in
    tests/e2e/*) ;;
    tests/*test_*.py) echo "$1" ;;
    tests/*/*.py) dirname "$1" ;;
    lightagentd/skills/*) printf '%s\n' tests/test_skills.py tests/test_skill_unpacking.py tests/tools/test_published_skills.py ;;
    lightagentd/*.py | tools/*.py)
      folder=tests/$(dirname "${1#lightagentd/}")
      folder=${folder%/.}
      name=$folder/test_$(basename "$1")
      [ -e "$name" ] || name=$folder
      [ "$name" = tests ] || echo "$name"
      ;;
    skills/*) printf '%s\n' tests/skills tests/llm/runbook tests/test_skills.py ;;
    packaging/* | units/*) echo tests/packaging ;;
  esac
}

make --no-print-directory lint
mapfile -t tests < <(changed | while read -r file; do tests_of "$file"; done | sort -u | while read -r path; do
  [ ! -e "$path" ] || echo "$path"
done)
if [ ${#tests[@]} -eq 0 ]; then
  echo "No test belongs to what changed since main."
  exit
fi
echo "${tests[@]}"
exec .venv/bin/python -m pytest -q -n "$(nproc)" --maxfail=10 "${tests[@]}"
