#!/bin/sh
# Builds the RPM package from the work tree, with the rpmbuild of Debian 13, and prints the path of the package.
#
#   rpm.sh           puts it into dist/
#   rpm.sh FOLDER    puts it there, compressed less: for tests
#
# Its dependencies have Fedora's names, so they are not checked here; what the build needs is in the build root. What
# rpmbuild would do to programs, libraries and pages at the end is left out: the package has none that it would change.
set -eu
cd "$(dirname "$0")/../.."
here=packaging/checkout
target=${1:-dist}
quick=""
[ "$#" = 0 ] || quick="--define=_binary_payload w1.gzdio"
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
  --define "__os_install_post %{nil}" ${quick:+"$quick"} \
  "$name/packaging/rpm/lightagentd.spec" >"$work/log" 2>&1; then
  cat "$work/log" >&2
  echo "The RPM package could not be built: see above." >&2
  exit 1
fi
mkdir -p "$target"
cp "$work"/RPMS/noarch/*-"$version"-*.noarch.rpm "$target"
ls "$target"/lightagentd-"$version"-*.noarch.rpm
