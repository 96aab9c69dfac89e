#!/usr/bin/env bash
# Puts what packages are built from into a new folder: source.sh FOLDER
#
# The files of the work tree as they are now, tracked or new, without what only a checkout needs; asyncvarlink from
# .venv, which has the version that requirements.lock pins; and packaging/debian as debian/.
set -euo pipefail
umask 022
target=$1
cd "$(dirname "$0")/../.."
mkdir -p "$target/vendor"
git -c safe.directory="$PWD" ls-files -z --cached --others --exclude-standard -- \
  LICENSE README.md CHANGELOG.md SECURITY.md docs pyproject.toml agent lightagentd packaging skills tools units |
  while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar -c --null --files-from=- | tar -x -C "$target"
mv "$target/packaging/debian" "$target/debian"

pinned=$(sed -n 's/^asyncvarlink==\([^ ]*\).*/\1/p' requirements.lock)
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
metadata=$site/asyncvarlink-$pinned.dist-info
if [ ! -d "$metadata" ]; then
  echo ".venv has no asyncvarlink $pinned, which requirements.lock pins: run make setup" >&2
  exit 1
fi
cp -r "$site/asyncvarlink" "$target/vendor/asyncvarlink"
find "$target/vendor" -name __pycache__ -prune -exec rm -r {} +
cp "$metadata/licenses/LICENSE" "$target/vendor/asyncvarlink/LICENSE"
find "$target" -exec chmod u=rwX,go=rX {} +
