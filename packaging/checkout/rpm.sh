#!/bin/sh
# Builds the RPM package from the work tree, with the rpmbuild of Debian 13, into dist/ or the folder that is named.
# Prints the path of the package.
#
# Its dependencies have Fedora's names, so they are not checked here; what the build needs is in the build root.
set -eu
cd "$(dirname "$0")/../.."
here=packaging/checkout
target=${1:-dist}
version=$(sed -n 's/^Version: *//p' packaging/rpm/lightagentd.spec)
if ! grep -q "^__version__ = \"$version\"\$" lightagentd/__init__.py; then
  echo "packaging/rpm/lightagentd.spec says version $version, and lightagentd/__init__.py another: mend one of them" >&2
  exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
name=lightagentd-$version
"$here/source.sh" "$work/$name"
mkdir "$work/SOURCES"
tar -C "$work" -c -z --owner=0 --group=0 -f "$work/SOURCES/$name.tar.gz" "$name"
if ! "$here/builder.sh" "$work" rpmbuild -bb --nodeps --define "_topdir /build" \
  "$name/packaging/rpm/lightagentd.spec" >"$work/log" 2>&1; then
  cat "$work/log" >&2
  echo "The RPM package could not be built: see above." >&2
  exit 1
fi
mkdir -p "$target"
cp "$work"/RPMS/noarch/lightagentd-"$version"-*.noarch.rpm "$target"
ls "$target"/lightagentd-"$version"-*.noarch.rpm
