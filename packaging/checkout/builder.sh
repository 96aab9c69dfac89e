#!/bin/sh
# Runs a command in Debian 13 with what builds packages: builder.sh FOLDER COMMAND...
#
# FOLDER is /build there, and where the command runs. Nothing else that it writes remains, it has no network, and
# what it starts ends with it. Needs root and mmdebstrap; the first run on a host takes a minute or two more.
set -eu
folder=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
if [ "$(id -u)" != 0 ]; then
  echo "Building packages for Debian 13 needs root: sudo make deb" >&2
  exit 1
fi
root=$(.venv/bin/python -m tests.e2e.debian)
# shellcheck disable=SC2016
exec setpriv --pdeathsig=KILL unshare --mount --propagation=private --net --pid --fork --kill-child=KILL sh -c '
  set -eu
  root=$1 folder=$2
  shift 2
  mount -t tmpfs -o mode=0755 tmpfs /mnt
  mkdir /mnt/upper /mnt/work /mnt/root
  # The folder is entered first: commas and colons in its name would be taken for options.
  (cd "$root" && mount -t overlay -o lowerdir=.,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root) ||
    cp -a --reflink=auto "$root/." /mnt/root
  mkdir /mnt/root/build
  mount --bind "$folder" /mnt/root/build
  mount -t proc proc /mnt/root/proc
  mount --rbind /dev /mnt/root/dev
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    chroot /mnt/root sh -c "cd /build && exec \"\$@\"" sh "$@"
' builder "$root" "$folder" "$@"
