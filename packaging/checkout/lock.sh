#!/bin/sh
# Writes requirements.lock: the newest versions that fit pyproject.toml, with hashes, for Python 3.11 and later.
set -eu
cd "$(dirname "$0")/../.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet pip-tools
compile() {
  "$tools/venv/bin/pip-compile" --quiet --strip-extras --allow-unsafe --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host "$@"
}
compile --extra dev --output-file "$tools/lock" pyproject.toml
# What only a newer Python needs is left out by the one that runs here.
echo 'pyasyncore' >"$tools/newer.in"
compile --output-file "$tools/newer" "$tools/newer.in"
sed -i 's/^\(pyasyncore==[^ ]*\)/\1 ; python_version >= "3.12"/' "$tools/newer"
{
  echo '# Made by "make lock". The versions that were tested, with the hashes of their files.'
  cat "$tools/lock" "$tools/newer"
} >requirements.lock
