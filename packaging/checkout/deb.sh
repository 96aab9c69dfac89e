#!/bin/sh
# Builds the Debian package from the work tree, in Debian 13.
#
#   deb.sh              puts it into dist/ and prints its path
#   deb.sh --cached     prints the folder in the cache that has it, below $LIGHTAGENT_TEST_CACHE or .cache/e2e
#
# What was built from the same files before is taken from the cache. That of the cache alone is for tests: its files
# are the same, compressed less, for to compress them well takes most of the time of a build (dpkg-deb(1)).
set -eu
cd "$(dirname "$0")/../.."
here=packaging/checkout
cache=${LIGHTAGENT_TEST_CACHE:-$PWD/.cache/e2e}/packages
compression="xz 6"
[ "${1:-}" != --cached ] || compression="gzip 1"
mkdir -p "$cache"
version=$(sed -n '1s/.*(\(.*\)).*/\1/p' packaging/debian/changelog)
if ! grep -q "^__version__ = \"$version\"\$" lightagentd/__init__.py; then
  echo "packaging/debian/changelog says version $version, and lightagentd/__init__.py another: mend one of them" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
"$here/source.sh" "$work/lightagentd-$version"
key=$({
  echo "$compression"
  tar -C "$work" -c --sort=name --mtime=@0 --owner=0 --group=0 .
  cat "$here/builder.sh" tests/e2e/debian.py
} | sha256sum | cut -c 1-16)
built=$cache/$key
# Two runs at once build it once.
exec 9>"$cache/lock"
flock 9
if [ ! -d "$built" ]; then
  if ! "$here/builder.sh" "$work" sh -c "
    cd lightagentd-$version &&
      export DPKG_DEB_COMPRESSOR_TYPE=${compression% *} DPKG_DEB_COMPRESSOR_LEVEL=${compression#* } &&
      dpkg-buildpackage --build=binary --ignore-builtin-builddeps --no-sign" \
    >"$work/log" 2>&1; then
    cat "$work/log" >&2
    echo "The Debian package could not be built: see above." >&2
    exit 1
  fi
  rm -rf "$built.partial"
  mkdir "$built.partial"
  cp "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$work/log" "$built.partial"
  mv "$built.partial" "$built"
  find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +7 -exec rm -rf {} +
fi
flock -u 9
if [ "${1:-}" = --cached ]; then
  echo "$built"
else
  mkdir -p dist
  cp "$built"/*.deb "$built"/*.changes "$built"/*.buildinfo dist
  echo "dist/lightagentd_${version}_all.deb"
fi
