#!/bin/sh
# Puts everything that belongs on a system below DESTDIR; the Debian and the RPM package are made of it.
# Needs a Python with the dependencies, for the man pages and completions are made from the code.
#
#   DESTDIR=FOLDER VENDORED=FOLDER packaging/install.sh
#
#   DESTDIR           the root to install below
#   VENDORED          the folder of the Python packages that no distribution has; each has its licence as a file LICENSE
#   PYTHON            /usr/bin/python3: what runs the product
#   SITE              /usr/lib/python3/dist-packages: where PYTHON looks for packages
#   ZSH_COMPLETIONS   /usr/share/zsh/vendor-completions
set -eu
umask 022
cd "$(dirname "$0")/.."
: "${DESTDIR:?where to install: name a folder}" "${VENDORED:?name the folder of the packages that travel inside}"
python=${PYTHON:-/usr/bin/python3}
site=${SITE:-/usr/lib/python3/dist-packages}
zsh=${ZSH_COMPLETIONS:-/usr/share/zsh/vendor-completions}

# put MODE FOLDER FILE...: a file that does not exist is an error, so nothing is left out unnoticed.
put() {
  mode=$1
  folder=$DESTDIR$2
  shift 2
  mkdir -p "$folder"
  install -m "$mode" "$@" "$folder"
}

# tree FOLDER TARGET: what lies below FOLDER, with its permissions but for the group and others.
tree() {
  mkdir -p "$DESTDIR$2"
  cp -r "$1/." "$DESTDIR$2"
  find "$DESTDIR$2" -name __pycache__ -prune -exec rm -r {} +
  chmod -R u=rwX,go=rX "$DESTDIR$2"
}

# launcher NAME MODULE: a program in /usr/bin that runs the module's main().
launcher() {
  mkdir -p "$DESTDIR/usr/bin"
  cat >"$DESTDIR/usr/bin/$1" <<EOF
#!$python -I
import sys

from $2 import main

sys.exit(main())
EOF
  chmod 755 "$DESTDIR/usr/bin/$1"
}

tree lightagentd "$site/lightagentd"
tree "$VENDORED" "$site/lightagentd/_vendor"
for kind in tools skills agent; do
  tree "$kind" "/usr/share/lightagentd/$kind"
done
launcher lightagentd lightagentd.__main__
launcher lactl lightagentd.cli.main
launcher lightagent-notify lightagentd.desktop.notify

put 644 /usr/lib/systemd/system units/*.service units/*.socket units/*.timer units/*.path
put 644 /usr/share/lightagentd/change-profiles units/change-profiles/*.conf
put 644 /usr/lib/systemd/user units/user/*.service
put 644 /usr/lib/systemd/catalog packaging/journal/lightagentd.catalog
put 644 /usr/lib/sysusers.d units/sysusers.d/lightagentd.conf
put 644 /usr/lib/tmpfiles.d units/tmpfiles.d/lightagentd.conf
# By its name it comes before what an administrator writes below /etc/sysctl.d: the last one applies.
mkdir -p "$DESTDIR/usr/lib/sysctl.d"
install -m 644 units/sysctl.d/lightagentd.conf "$DESTDIR/usr/lib/sysctl.d/50-lightagentd.conf"

put 644 /usr/share/dbus-1/system.d packaging/dbus/org.lightagent1.conf
put 644 /usr/share/dbus-1/system-services packaging/dbus/org.lightagent1.service packaging/dbus/org.lightagent1.Approver.service
put 644 /usr/share/polkit-1/actions packaging/polkit/org.lightagent1.policy
mkdir -p "$DESTDIR/usr/share/polkit-1/rules.d"
install -m 644 packaging/polkit/lightagentd.rules "$DESTDIR/usr/share/polkit-1/rules.d/50-lightagentd.rules"
put 644 /usr/share/lightagentd/varlink packaging/varlink/*.varlink
put 644 /etc/apparmor.d packaging/apparmor/lightagentd
put 644 /usr/share/lightagentd/selinux packaging/selinux/lightagentd.te packaging/selinux/lightagentd.fc

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
PYTHONPATH="$PWD:$VENDORED" PYTHONDONTWRITEBYTECODE=1 "$python" packaging/generate.py "$pages"
for page in "$pages"/man/*.[1578]; do
  put 644 "/usr/share/man/man${page##*.}" "$page"
done
put 644 /usr/share/bash-completion/completions "$pages/completions/lactl.bash"
mv "$DESTDIR/usr/share/bash-completion/completions/lactl.bash" "$DESTDIR/usr/share/bash-completion/completions/lactl"
put 644 "$zsh" "$pages/completions/_lactl"
put 644 /usr/share/fish/vendor_completions.d "$pages/completions/lactl.fish"

page=/usr/share/cockpit/lightagentd
put 644 "$page" packaging/cockpit/*.js packaging/cockpit/*.css packaging/cockpit/*.html packaging/cockpit/manifest.json \
  "$pages"/cockpit/*.js

tree packaging/examples /usr/share/doc/lightagentd/examples

put 644 /etc/lightagentd packaging/lightagentd.toml
for folder in agent tools skills policy.d prompts hooks mcp.d lightagentd.toml.d; do
  mkdir -p "$DESTDIR/etc/lightagentd/$folder"
done
# API keys: the package gives it to the daemon's user once there is one.
install -d -m 700 "$DESTDIR/etc/lightagentd/keys"
