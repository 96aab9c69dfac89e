#!/bin/bash
# machine.sh up|down: stages the faults that the cases of machine.toml ask about, and takes them back.
#
# It is for a Debian 13 system that is there for nothing else, as root: it fills file systems, breaks
# resolv.conf, makes a user and installs a package. test_evals.py runs it in a booted container.
set -u
units=/run/systemd/system
services="tariffd courierd meterd tilerender olddash newdash stocksync brokerd hoarder reaper"

unit() { cat >"$units/$1"; }

# serve NAME PORT ADDRESS
serve() {
    unit "$1.service" <<EOF
[Service]
ExecStart=/usr/bin/python3 -m http.server --bind $3 $2
EOF
}

await() {
    for _ in $(seq 100); do "$@" >/dev/null 2>&1 && return; sleep 0.05; done
    echo "still not: $*" >&2
    exit 1
}

reached() { python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])))' "$@"; }

# certificate FOLDER NAME NOT_BEFORE NOT_AFTER
certificate() {
    mkdir -p "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -subj "/CN=$2.example.org" \
        -not_before "$3" -not_after "$4" -out "$1/$2.pem" 2>/dev/null
}

failing_services() {
    unit tariffd.service <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "reading tariffs"; echo "tariff table 2026 is older than the licence" >&2; exit 4'
EOF
    unit courierd.service <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/cat /etc/courier/routes.conf
EOF
    mkdir -p /etc/meter
    printf 'interval = 5\n[pulse\nlimit = 3\n' >/etc/meter/meter.toml
    unit meterd.service <<'EOF'
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -c 'import tomllib; tomllib.load(open("/etc/meter/meter.toml", "rb"))'
EOF
    unit tilerender.service <<'EOF'
[Service]
ExecStart=/bin/sh -c 'echo "rendering tile 81"; kill -KILL $$$$'
EOF
    serve olddash 8085 0.0.0.0
    serve newdash 8085 0.0.0.0
    unit stocksync.service <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "warehouse 7 does not answer" >&2; exit 6'
EOF
    unit stocksync.timer <<'EOF'
[Timer]
OnActiveSec=10ms
OnUnitActiveSec=1h
AccuracySec=1ms
EOF
    unit srv-vault.mount <<'EOF'
[Mount]
What=/dev/vault-disk
Where=/srv/vault
Type=ext4
EOF
}

running_services() {
    serve brokerd 9310 127.0.0.1
    unit hoarder.service <<'EOF'
[Service]
ExecStart=/usr/bin/python3 -c 'import time; held = b"x" * (256 << 20); open("/run/hoarder.ready", "w").close(); time.sleep(10**6)'
EOF
    unit reaper.service <<'EOF'
[Service]
ExecStart=/usr/bin/python3 -c 'import os, time; [os.fork() or os._exit(0) for _ in range(17)]; open("/run/reaper.ready", "w").close(); time.sleep(10**6)'
EOF
}

file_systems() {
    mkdir -p /srv/scans /srv/mailq /srv/proofs /srv/press
    mount -t tmpfs -o size=8m scans /srv/scans
    head -c 16M /dev/zero >/srv/scans/page-001.tif 2>/dev/null
    mount -t tmpfs -o size=8m,nr_inodes=150 mailq /srv/mailq
    (cd /srv/mailq && i=0 && while : 2>/dev/null >"m$i"; do i=$((i + 1)); done)
    mount --bind /srv/proofs /srv/press
    mount -o remount,bind,ro /srv/press
}

# A repository of this machine with a newer version than the one that is installed.
package() {
    local folder
    folder=$(mktemp -d)
    mkdir -p "$folder/DEBIAN" /srv/ferryrepo
    for version in 1.4 1.5; do
        printf 'Package: ferry-tools\nVersion: %s\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' $version \
            >"$folder/DEBIAN/control"
        dpkg-deb -b "$folder" "/srv/ferryrepo/ferry-tools_$version.deb"
    done
    rm -r "$folder"
    dpkg -i /srv/ferryrepo/ferry-tools_1.4.deb
    { dpkg-deb -f /srv/ferryrepo/ferry-tools_1.5.deb
      echo "Filename: ./ferry-tools_1.5.deb"
      echo "Size: $(stat -c %s /srv/ferryrepo/ferry-tools_1.5.deb)"
      echo "SHA256: $(sha256sum /srv/ferryrepo/ferry-tools_1.5.deb | cut -d' ' -f1)"
    } >/srv/ferryrepo/Packages
    echo 'deb [trusted=yes] file:/srv/ferryrepo ./' >/etc/apt/sources.list.d/ferry.list
    apt-get -q update -o Dir::Etc::sourcelist=sources.list.d/ferry.list -o Dir::Etc::sourceparts=-
}

up() {
    failing_services
    running_services
    systemctl daemon-reload
    systemctl start olddash brokerd hoarder reaper
    await reached 127.0.0.1 8085
    systemctl start --no-block tariffd courierd meterd tilerender newdash stocksync.timer srv-vault.mount
    file_systems
    certificate /etc/imap/tls mail "$(date -u -d '-80 days' +%Y%m%d%H%M%SZ)" "$(date -u -d '+6 days +1 hour' +%Y%m%d%H%M%SZ)"
    certificate /srv/tls press 20250101000000Z 20250401000000Z
    package >/dev/null 2>&1
    cp -p /etc/resolv.conf /run/resolv.conf.before
    echo 'nameservr 192.0.2.53' >/etc/resolv.conf
    for line in 2 3 4 5 6 7; do echo "belt $line jammed: emergency stop"; done | logger -t sortbelt -p user.err
    useradd --no-create-home frieda
    systemd-run -q --unit=frieda-login -p User=frieda -p PAMName=login -E XDG_SESSION_CLASS=user sleep infinity
    for one in tariffd courierd meterd tilerender newdash stocksync srv-vault.mount; do await systemctl is-failed "$one"; done
    await test -e /run/hoarder.ready
    await test -e /run/reaper.ready
    await reached 127.0.0.1 9310
    await sh -c 'loginctl list-sessions | grep "frieda.* user "'
    mkdir -p /etc/ferry
    echo 'berths = 3' >/etc/ferry/ferry.conf
    journalctl --sync
}

down() {
    systemctl stop stocksync.timer $services frieda-login
    loginctl terminate-user frieda
    umount /srv/scans /srv/mailq /srv/press
    [ -e /run/resolv.conf.before ] && cat /run/resolv.conf.before >/etc/resolv.conf
    dpkg --purge ferry-tools
    for one in $services; do rm -f "$units/$one.service"; done
    rm -rf $units/stocksync.timer $units/srv-vault.mount /srv/{scans,mailq,press,proofs,vault,tls,ferryrepo} /etc/{imap,ferry,meter}
    rm -f /run/{hoarder,reaper}.ready /run/resolv.conf.before /etc/apt/sources.list.d/ferry.list /var/lib/apt/lists/*ferryrepo*
    userdel frieda
    systemctl daemon-reload
    systemctl reset-failed
    true
} >/dev/null 2>&1

case ${1-} in
    up | down) "$1" ;;
    *) echo "usage: machine.sh up|down" >&2; exit 2 ;;
esac
