"""Attacks on what runs: processes, services, the kernel's settings, the daemon itself."""

from __future__ import annotations

import re

from tests.attacks.case import Aftermath, python, sh

_SIGNALS = """
import ctypes, fcntl, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, *arguments):
    try:
        return what(*arguments)
    except (OSError, OverflowError) as err:
        return err
for pid in map(int, sys.argv[1:]):
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        attempt(os.kill, pid, number)
        attempt(os.killpg, pid, number)
        attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number))
        attempt(lambda: signal.pidfd_send_signal(os.open(f"/proc/{pid}", os.O_RDONLY), number))
        libc.syscall(234, pid, pid, int(number)); libc.syscall(131, pid, pid, int(number))  # tgkill
        info = ctypes.create_string_buffer(128)
        libc.syscall(129, pid, int(number), info); libc.syscall(297, pid, pid, int(number), info)
        one, other = os.pipe()
        attempt(fcntl.fcntl, one, fcntl.F_SETOWN, pid)
        attempt(fcntl.fcntl, one, 10, int(number))  # F_SETSIG
        attempt(fcntl.fcntl, one, fcntl.F_SETFL, os.O_ASYNC)
        attempt(os.write, other, b"x")
        pair = socket.socketpair()
        attempt(fcntl.fcntl, pair[0], fcntl.F_SETOWN, pid)
        attempt(fcntl.fcntl, pair[0], 10, int(number))
        attempt(fcntl.fcntl, pair[0], fcntl.F_SETFL, os.O_ASYNC)
        attempt(pair[1].send, b"x")
"""

_MEMORY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for pid in map(int, sys.argv[1:]):
    for name in ("mem", "oom_score_adj",
                 "comm", "timerslack_ns", "clear_refs", "coredump_filter", "attr/exec",
                 "autogroup", "limits", "setgroups", "uid_map", "sched", "environ", "loginuid"):
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_RDWR)
            print("opened", pid, name)
            os.write(fd, b"1000")
        except OSError as err:
            print(pid, name, err)
    for request in (16, 0x4206):
        print("ptrace", libc.ptrace(request, pid, None, None))
    print("writev", libc.syscall(311, pid, None, 0, None, 0, 0))
    print("madvise", libc.syscall(440, -1, None, 0, 20, 0))
    print("move_pages", libc.syscall(256, pid, 0, None, None))
    print("prlimit", libc.syscall(302, pid, 7, ctypes.create_string_buffer(16), None))
    print("nice", libc.setpriority(0, pid, 19))
    print("affinity", libc.syscall(203, pid, 8, ctypes.create_string_buffer(b"\\1", 8)))
"""

_NAMESPACES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x10020000, 0x7c020000, 0x00020000, 0x40000000, 0x04000000, 0x08000000):
    print("unshare", libc.unshare(flags), ctypes.get_errno())
print("mount", libc.mount(b"tmpfs", b"@folder@", b"tmpfs", 0, None))
print("remount", libc.mount(b"none", b"/", None, 32 | 4096, None))
print("umount", libc.umount2(b"/run", 2), libc.umount2(b"/", 2), libc.umount2(b"@folder@", 2))
print("pivot", libc.syscall(155, b"/tmp", b"/tmp"), "chroot", libc.chroot(b"/tmp"))
print("fsopen", libc.syscall(430, b"tmpfs", 0), "open_tree", libc.syscall(428, -100, b"/", 1))
print("swapon", libc.swapon(b"@file@", 0), "sethostname", libc.sethostname(b"owned", 5))
print("settime", libc.settimeofday(ctypes.create_string_buffer(16), None), "acct", libc.acct(b"@file@"))
print("setuid", libc.setuid(0), libc.setgid(0), libc.setgroups(0, None), libc.setresuid(0, 0, 0))
"""


_FOREIGN = """
import ctypes, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
# exit(getpid() > 0) with getpid(2) of i386 in a program of x86-64, whose name would stand in a kernel's log
code = bytes.fromhex("b814000000 cd80 31ff 85c0 400f9fc7 b83c000000 0f05")
kind = b"\\x7fELF\\x02\\x01\\x01"
head = struct.pack("<16sHHIQQQIHHHHHH", kind, 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
size = 120 + len(code)
path = os.environ["TMPDIR"] + "/<0>@mark@"
with open(path, "wb") as file:
    file.write(head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, size, size, 4096) + code)
os.chmod(path, 0o700)
if platform.machine() == "x86_64":
    for call in (lambda: libc.syscall(0x40000000 | 39), lambda: os.execv(path, [path])):
        if (child := os.fork()) == 0:
            os._exit(call() > 0)
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _no_call_counted(aftermath: Aftermath) -> None:
    assert set(re.findall("ended with (.*)", aftermath.text)) <= {"0"}, aftermath.text


_NETLINK = """
import socket
for protocol in range(32):
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
            print("opened", protocol)
            sock.sendto(b"@mark@", (@pid@, 0))
    except OSError as err:
        print(protocol, err)
"""


def _four_opened(aftermath: Aftermath) -> None:
    assert {*re.findall(r"opened (\d+)", aftermath.text)} <= {"0", "4", "15", "16"}, aftermath.text


_LOCK = """
import fcntl, subprocess, sys
with open(sys.argv[1]) as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if len(sys.argv) == 2:
        subprocess.run([sys.executable, "-c", sys.orig_argv[2], sys.argv[1], "second"])
    else:
        print("the first one keeps nobody waiting")
"""

_TAKEN = """
import ctypes, fcntl, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
def attempt(name, what, *arguments):
    try:
        what(*arguments)
    except OSError as err:
        if err.errno in (1, 92, 93, 97):  # what the filter says
            return
    print("got", name)
def pages(flags):
    ctypes.set_errno(0)
    libc.mmap(None, 1 << 21, 3, flags | 0x40000, -1, 0)
    raise OSError(ctypes.get_errno(), "")
for flags in (0x21, 0x22):
    attempt(f"huge pages {flags}", pages, flags)
attempt("huge pages in a file", os.memfd_create, "x", 4)
def choose(family, kind):
    with socket.socket(family, kind) as sock:
        sock.setsockopt(socket.IPPROTO_IP, 51, (51820 << 16 | 51820).to_bytes(4, sys.byteorder))
for family in (2, 10):
    for kind in (1, 2):
        attempt(f"a port of its choice {family} {kind}", choose, family, kind)
    for kind, protocol in ((1, 262), (2, 136), (5, 132), (1, 132), (6, 33), (2, 115), (1, 41), (2, 2)):
        attempt(f"a transport {kind} {protocol}", socket.socket, family, kind, protocol)
for path in sys.argv[1:]:
    opened = os.open(path, os.O_RDONLY)
    for request in (0x50009401, 0x50009417, 0x5000940E, 0x50009418, 0x5000940F, 0x5000943F, 0x50009402,
                    0x40309410, 0x9408, 0xC0189436, 0x40086602, 0x40086685, 0x401C5820):
        attempt(f"a request {request:x}", fcntl.ioctl, opened, request, bytes(1024))
"""


def _nothing_got(aftermath: Aftermath) -> None:
    assert "got" not in aftermath.text, aftermath.text


def _nobody_waited(aftermath: Aftermath) -> None:
    assert "keeps nobody waiting" in aftermath.text, aftermath.text


def _nothing_answered(aftermath: Aftermath) -> None:
    assert "answered" not in aftermath.text


CASES = [
    sh(
        "signals",
        python(_SIGNALS, "@pids@"),
        """kill -STOP @pids@; kill -9 @pids@; pkill -9 -f 3000; killall -9 sleep; kill -9 -1
        timeout 2 fuser -k @file@; true""",
    ),
    sh(
        "memory and limits of others",
        python(_MEMORY, "@pids@ 1 $PPID"),
        """renice 19 -p @pids@; ionice -c 3 -p @pids@; chrt -i -p 0 @pid@; taskset -p 1 @pid@
        prlimit --pid @pid@ --nofile=7:7; choom -n 1000 -p @pid@
        timeout 5 gdb -p @pid@ -batch -ex 'call (int)kill(0,9)' </dev/null
        timeout 1 strace -p @pid@ -o /dev/null; true""",
        timeout_s=30,
    ),
    sh(
        "namespaces",
        python(_NAMESPACES),
        """unshare -Urm sh -c 'mount -o remount,rw / && touch @folder@/@mark@'
        nsenter -t 1 -a touch @folder@/@mark@; mount -o remount,rw /; mount --bind $TMPDIR @folder@
        mount -t tmpfs t @folder@; umount -l @folder@ /tmp; chroot / touch @folder@/@mark@
        bwrap --dev-bind / / touch @folder@/@mark@; bwrap --unshare-user --bind / / touch @folder@/@mark@
        true""",
    ),
    sh("calls of another architecture", python(_FOREIGN), also=_no_call_counted),
    sh("netlink of others", python(_NETLINK), also=_four_opened),
    sh("locks on files of others", python(_LOCK, "@file@"), also=_nobody_waited),
    sh("what all have together", python(_TAKEN, "@folder@ @file@"), also=_nothing_got),
    sh(
        "cron and at",
        """for f in /etc/crontab /etc/cron.d/@mark@ /var/spool/cron/@mark@ /etc/cron.hourly/@mark@ \\
        /var/spool/cron/crontabs/@mark@; do echo '* * * * * root touch @folder@/@mark@' >>$f; done
        echo '* * * * * touch @folder@/@mark@' | crontab -; echo 'touch @folder@/@mark@' | at now; true""",
    ),
    sh(
        "systemd-run and systemctl",
        """systemd-run touch @folder@/@mark@; systemd-run --user touch @folder@/@mark@
        systemctl start rescue.target --no-block; systemctl stop @unit@; systemctl kill @unit@
        systemctl set-property @unit@ CPUWeight=1; systemctl mask @unit@
        systemctl set-environment MARK=@mark@; systemctl enable lightagent-change@mallory.socket; true""",
        """loginctl enable-linger nobody; hostnamectl set-hostname owned; timedatectl set-timezone UTC
        localectl set-locale C; journalctl --rotate; journalctl --vacuum-size=1; timeout 3 udevadm trigger
        timeout 3 networkctl down lo; true""",
        timeout_s=60,
    ),
    sh(
        "D-Bus calls",
        """m=org.freedesktop.systemd1; h=org.freedesktop.hostname1; p=/org/freedesktop/systemd1
        while read a; do for where in --system --address=unix:path=/run/systemd/private; do
        timeout 5 busctl $where call $a; done; done <<END
        $m $p $m.Manager SetEnvironment as 1 MARK=@mark@
        $m $p $m.Manager StopUnit ss @unit@ replace
        $m $p/unit/dbus_2eservice $m.Unit Restart s replace
        $h /org/freedesktop/hostname1 $h SetHostname sb owned false
        org.freedesktop.DBus / org.freedesktop.DBus RequestName su org.example.x 0
        org.freedesktop.DBus / org.freedesktop.DBus.Monitoring BecomeMonitor asu 0 0
END
        timeout 5 busctl set-property $m $p $m.Manager LogLevel s debug; true""",
        timeout_s=80,
    ),
    sh(
        "settings of the kernel",
        """for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /dev/kmsg \\
        /proc/sys/kernel/hostname /proc/sys/kernel/ns_last_pid /proc/1/oom_score_adj /sys/power/state \\
        /sys/kernel/mm/ksm/run /proc/self/loginuid /dev/mem /dev/vda /dev/sda /dev/console /dev/tty1; do
        echo 0 >$f; done
        sysctl -w kernel.hostname=owned; hostname owned; date -s 2001-01-01; dmesg -C; logger @mark@
        wall @mark@; write root </dev/null; ip link set lo down; ip addr add 10.9.9.9/32 dev lo
        ip route add 10.9.8.0/24 dev lo; modprobe dummy; losetup -f @file@; true""",
    ),
    sh(
        "other cgroups",
        """find /sys/fs/cgroup -name cgroup.procs -o -name tasks -o -name cgroup.kill | while read f; do
        echo $$ >$f; echo 1 >$f; done
        find /sys/fs/cgroup -maxdepth 4 -type d | head -50 | while read d; do mkdir $d/@mark@; done
        cat /proc/self/cgroup""",
    ),
    sh(
        "a process that stays",
        """setsid sleep 300 </dev/null >/dev/null 2>&1 &
        (setsid sh -c '(sleep 300 &) ; sleep 300' </dev/null >/dev/null 2>&1 &)
        nohup sleep 300 >/dev/null 2>&1 & trap '' TERM HUP; (trap '' TERM; sleep 300) >/dev/null 2>&1 &
        disown -a; env -i sleep 300.@mark@ >/dev/null 2>&1 &
        exec >/dev/null 2>&1; true""",
    ),
    sh(
        "a process that stays, and closes its cgroup",
        """cg="/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
        setsid sh -c "trap '' TERM; sleep 300" </dev/null >/dev/null 2>&1 & sleep 0.2
        chmod -R 777 "$cg/.." /sys/fs/cgroup 2>/dev/null; chmod 000 "$cg"/* "$cg" "$cg/.."
        setfattr -n user.journald_log_filter_patterns -v '~.*' "$cg/.."; true""",
        "cat /proc/self/cgroup",
    ),
    sh(
        "the control socket",
        """lactl status; for s in @socket@ /run/lightagentd/control.sock @runtime@/workers/*; do
        export LIGHTAGENT_SOCKET=$s
        lactl tools call changer bash.exec command='touch @folder@/@mark@' effect=change
        python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);
s.send(b"{\\"method\\":\\"org.lightagent1.Manager.GetStatus\\"}\\0"); print("answered", s.recv(99))' $s
        varlinkctl call $s org.lightagent1.Manager.GetStatus '{}'; done; true""",
        also=_nothing_answered,
    ),
]
