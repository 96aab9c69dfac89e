#!/bin/sh
# Makes .venv in the checkout with the pinned versions of requirements.lock, and sees to it that the system
# packages are there: as root on a system with apt they are installed, else the one command to run is printed.
#
#   setup.sh          what the daemon needs
#   setup.sh test     also what the tests need
#   setup.sh build    also what builds the packages: "make deb", "make rpm"
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
venv=.venv

needed=""      # without these there is no daemon
useful=""      # without these it does less, and says so
have() { command -v "$1" >/dev/null 2>&1; }

have "$python" || needed="$needed python3"
if have "$python"; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "lightagentd needs Python 3.11 or newer, and $python is $("$python" -V). Name another: make PYTHON=..." >&2
    exit 1
  }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || needed="$needed python3-venv"
  # systemd-python is compiled here: it has no wheels.
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"] + "/Python.h")')
  [ -e "$header" ] || needed="$needed python3-dev"
fi
have cc || needed="$needed gcc libc6-dev"
have pkg-config || needed="$needed pkg-config"
have pkg-config && pkg-config --exists libsystemd 2>/dev/null || needed="$needed libsystemd-dev"
"$python" -c 'import ctypes; ctypes.CDLL("libseccomp.so.2")' 2>/dev/null || useful="$useful libseccomp2"
have bwrap || useful="$useful bubblewrap"
have ip && have ss || useful="$useful iproute2"
have ps || useful="$useful procps"
have ping || useful="$useful iputils-ping"
have openssl || useful="$useful openssl"
have xdg-dbus-proxy || useful="$useful xdg-dbus-proxy"
if [ "${1:-}" = test ] || [ "${1:-}" = build ]; then
  have git || needed="$needed git"
  [ "$(id -u)" != 0 ] || have mmdebstrap || needed="$needed mmdebstrap"
fi
if [ "${1:-}" = test ]; then
  have dbus-daemon || needed="$needed dbus"
  have gdbus || needed="$needed libglib2.0-bin"
  have groff || useful="$useful groff-base"
  PATH=$PATH:/usr/sbin have apparmor_parser || useful="$useful apparmor"
  have checkmodule || useful="$useful checkpolicy"
  have zsh || useful="$useful zsh"
  have fish || useful="$useful fish"
  have tmux || useful="$useful tmux"
  if [ "$(id -u)" = 0 ]; then
    have systemd-nspawn || needed="$needed systemd-container"
    have nsenter || needed="$needed util-linux"
    have "${CHROMIUM:-chromium}" || useful="$useful chromium"
    # Elsewhere it would start a server, and what needs it is skipped.
    [ "${CI:-}" != true ] || have sshd || needed="$needed openssh-server openssh-client"
  fi
fi

if [ -n "$needed$useful" ]; then
  if [ "$(id -u)" = 0 ] && have apt-get; then
    echo "installing:$needed$useful"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $needed $useful >/dev/null
  elif [ -n "$needed" ]; then
    echo "These system packages are missing. Run this once, then try again:" >&2
    echo "  sudo apt-get install$needed$useful" >&2
    exit 1
  else
    echo "It works better with:  sudo apt-get install$useful"
  fi
fi

# The Debian roots of the tests mostly wait for the network, so they are made beside what follows, and go on when
# this script has ended. A test that needs one waits for it, and says why where it could not be made.
if [ "${1:-}" = test ] && [ "$(id -u)" = 0 ]; then
  roots=""
  for root in machine builder; do
    env --default-signal=INT "$python" -m tests.e2e.debian "$root" >/dev/null 2>&1 </dev/null &
    roots="$roots $!"
  done
  # shellcheck disable=SC2086,SC2154
  trap 'status=$?; [ "$status" = 0 ] || kill $roots 2>/dev/null' EXIT
fi

# Of pyproject.toml, only what an installation depends on.
stamp=$({ "$python" -VV; cat requirements.lock; sed -n '/^\[build-system\]/,/^\[tool/p' pyproject.toml; } | cksum)
if [ ! -e "$venv/stamp" ] || [ "$(cat "$venv/stamp")" != "$stamp" ]; then
  echo "making $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  PIP_DISABLE_PIP_VERSION_CHECK=1
  export PIP_DISABLE_PIP_VERSION_CHECK
  "$venv/bin/pip" install --quiet --use-pep517 --require-hashes --requirement requirements.lock
  "$venv/bin/pip" install --quiet --no-deps --no-build-isolation --editable .
  echo "$stamp" >"$venv/stamp"
fi
