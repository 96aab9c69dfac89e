#!/usr/bin/env bash
# Puts what packages are built from into a new folder: source.sh FOLDER
#
# The files of the work tree as they are now, tracked or new, without what only a checkout needs; the packages that no
# distribution has from .venv, which has the versions that requirements.lock pins; and packaging/debian as debian/.
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

site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# vendored NAME MODULE: a package with its licence.
vendored() {
  pinned=$(sed -n "s/^$1==\([^ ]*\).*/\1/p" requirements.lock)
  metadata=$site/${1//-/_}-$pinned.dist-info
  if [ ! -d "$metadata" ]; then
    echo ".venv has no $1 $pinned, which requirements.lock pins: run make setup" >&2
    exit 1
  fi
  cp -r "$site/$2" "$target/vendor/$2"
  cp "$metadata/licenses/LICENSE" "$target/vendor/$2/LICENSE"
}
vendored asyncvarlink asyncvarlink
vendored agent-client-protocol acp
find "$target/vendor" -name __pycache__ -prune -exec rm -r {} +
find "$target" -exec chmod u=rwX,go=rX {} +
