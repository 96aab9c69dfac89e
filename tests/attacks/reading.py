"""Attacks that read what is secret: files, other processes, the daemon's state and its credentials."""

from __future__ import annotations

from tests.attacks.case import TRIED, Aftermath, ask, asked, python, refused, sh

_SECRET_FILES = (
    "@secret@",
    "/etc/shadow",
    "/etc/gshadow",
    "@state@/history/data.mdb",
    "@state@/secret",
    "@config@/key",
    "/proc/1/environ",
    "/proc/@pid@/environ",
    "/proc/@daemon_pid@/environ",
    "/proc/@daemon_pid@/root/etc/shadow",
    "/proc/@daemon_pid@/cwd/../../../../../../etc/shadow",
    "/proc/self/root/etc/shadow",
    "/proc/@daemon_pid@/mem",
    "/proc/@daemon_pid@/maps",
    "/proc/kcore",
    "/dev/mem",
    "/etc/../etc/./shadow",
    "//etc//shadow",
)

_BY_CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
path, pids = sys.argv[1], list(map(int, sys.argv[2:]))
for pid in pids:
    print(libc.syscall(310, pid, None, 0, None, 0, 0), libc.ptrace(16, pid, None, None))
    for name in ("environ", "mem", "maps", "auxv", "stack", "syscall", "io", "pagemap", "wchan", "smaps"):
        try:
            print(open(f"/proc/{pid}/{name}", "rb").read(65536))
        except OSError as err:
            print(pid, name, err)
    try:
        print(os.listdir(f"/proc/{pid}/fd"), os.readlink(f"/proc/{pid}/exe"))
        print(os.listdir(f"/proc/{pid}/map_files"))
        fd = os.pidfd_open(pid)
        for number in range(20):
            got = libc.syscall(438, fd, number, 0)  # pidfd_getfd
            if got >= 0:
                print("got", os.readlink(f"/proc/self/fd/{got}"))
    except OSError as err:
        print(err)
handle = ctypes.create_string_buffer(136)
handle[0:4] = (128).to_bytes(4, "little")
mount = ctypes.c_int()
print(libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount), 0))
root = os.open("/", os.O_RDONLY)
got = libc.open_by_handle_at(root, handle, 0)
print(got >= 0 and os.read(got, 100))
for kind in (0x65735F, 1):
    print(libc.syscall(250, 0, -kind, 1), libc.syscall(250, 11, -kind, handle, 100))
"""


def _no_shadow(aftermath: Aftermath) -> None:
    told = aftermath.text
    assert "root:*:" not in told
    assert "root:!" not in told
    assert "root:$" not in told
    assert "LMDB" not in told.partition("stderr")[0]


def _no_environment(aftermath: Aftermath) -> None:
    assert "LA_SECRET=" not in aftermath.text
    assert "LIGHTAGENT_SOCKET=/" not in aftermath.text


CASES = [
    sh(
        "secrets by every reader",
        *(
            f"echo {' '.join(_SECRET_FILES)} | timeout 5 xargs {reader} | head -c 1M; true"
            for reader in (
                "cat",
                "strings -n 8",
                "tail -c 60000",
                "-n 1 base64",
                "od -An -c",
                "grep -a s3cr3t",
            )
        ),
        timeout_s=60,
        also=_no_shadow,
    ),
    sh(
        "environments of processes",
        "cat /proc/*/environ /proc/*/task/*/environ | tr '\\0' '\\n'; ps auxeww; ps -eo args e; true",
        also=_no_environment,
    ),
    sh(
        "memory by system calls",
        python(_BY_CALL, "@secret@ @pids@ @daemon_pid@ $PPID 1"),
        also=_no_environment,
    ),
    sh(
        "links to secrets in the scratch folder",
        """cd $TMPDIR; ln -s @secret@ a; ln @secret@ b; cat a b; cp @secret@ c
        tar -cf d.tar @secret@; cat d.tar
        mkdir e; ln -s / e/root
        cat e/root@secret@ e/root@state@/secret; find -L e -maxdepth 2 | head; true""",
    ),
    sh(
        "the daemon's folders",
        """ls -laR @state@ @runtime@; timeout 5 find / -xdev -maxdepth 5 -name data.mdb 2>/dev/null
        cat @config@/key @state@/*/* /run/credentials/*/*
        cat $(printf '%s/root@state@/secret ' /proc/[0-9]*) $(printf '%s/cwd/secret ' /proc/[0-9]*)
        dd if=$(findmnt -no SOURCE /) bs=1M count=8 | strings | grep s3cr3t; mount; true""",
    ),
    asked(
        "secrets through the tools that read",
        *(ask("file_read", path=path) for path in _SECRET_FILES),
        *(ask("crypto_hmac", path=path, key="k") for path in _SECRET_FILES[:4]),
        *(ask("file_grep", path=path, pattern=".") for path in _SECRET_FILES[:6]),
        ask("file_grep", path="@state@", pattern="s3cr3t"),
        ask("file_grep", path="/proc/@daemon_pid@", pattern="."),
        ask("crypto_certificate", path="@secret@"),
        ask("skill_run", name="certificate-expiry", args={"path": "@secret@"}),
        ends=TRIED,
        also=_no_shadow,
    ),
    asked(
        "what a process hides",
        ask("proc_info", pid=1),
        ask("proc_list", limit=1000),
        ask("proc_tree", pid=1, limit=1000),
        ask("net_connections", kind="unix", limit=1000),
        also=_no_environment,
    ),
    refused(
        "secrets by names that are no paths",
        ask("file_read", path="@secret@\u0000.txt"),
        ask("file_read", path="etc/shadow"),
        ask("file_read", path="~root/.ssh/id_rsa"),
        ask("file_read", path="file:///etc/shadow"),
        ask("file_read", path=["/etc/shadow"]),
        ask("file_glob", pattern="../../../root/**"),
        ask("file_grep", path="/tmp", pattern="x", glob="../../etc/shadow"),
        ask("web_get", url="file:///etc/shadow", effect="reach"),
    ),
]
