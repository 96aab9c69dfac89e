"""Attacks that change files, through every syntax that a shell has."""

from __future__ import annotations

from tests.attacks.case import TRIED, Case, ask, asked, python, refused, sh

EACH = """
for d in @folder@ @folder@/inner @run_folder@ /tmp /var/tmp /dev/shm /run /run/lock / /etc /root \\
    /var/spool/cron $(dirname $TMPDIR)/..; do
"""
"""The beginning of a loop over the folders in which a file might be made."""

_OPEN_WAYS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
folder, path, mark = sys.argv[1:]
def attempt(what, *arguments, **more):
    try:
        return what(*arguments, **more)
    except OSError as err:
        print(what, err)
for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND,
               os.O_RDONLY | os.O_TRUNC, os.O_RDWR | os.O_SYNC):
    fd = attempt(os.open, path, flags)
    if fd is not None:
        attempt(os.write, fd, b"x")
attempt(os.open, folder, os.O_TMPFILE | os.O_RDWR, 0o600)
attempt(os.open, folder + "/" + mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
fd = os.open(path, os.O_RDONLY)
attempt(os.ftruncate, fd, 0)
attempt(os.fchmod, fd, 0o600)
attempt(os.utime, fd)
attempt(os.setxattr, path, "user.mark", b"x")
attempt(os.posix_fallocate, fd, 0, 1 << 20)
attempt(os.truncate, path, 0)
attempt(os.utime, path, (1, 1))
attempt(os.open, f"/proc/self/fd/{fd}", os.O_RDWR)
attempt(os.open, f"/proc/thread-self/root{path}", os.O_RDWR)
attempt(os.copy_file_range, os.open("/etc/passwd", os.O_RDONLY), fd, 10)
attempt(os.sendfile, fd, os.open("/etc/passwd", os.O_RDONLY), 0, 10)
for request in (0x40086602, 0x401c5820, 0x40049409):  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FICLONE
    libc.ioctl(fd, request, ctypes.create_string_buffer(b"\\x40" + bytes(60)))
base = libc.mmap(None, 4096, 3, 1, fd, 0)
"""

_LINKS_OUT = """
import os, sys
folder, path, mark = sys.argv[1:]
scratch = os.environ["TMPDIR"]
for make in (
    lambda: os.link(path, scratch + "/hard"),
    lambda: os.link(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", scratch + "/by-fd", follow_symlinks=True),
    lambda: os.rename(path, scratch + "/moved"),
    lambda: os.symlink(path, scratch + "/soft"),
    lambda: open(scratch + "/soft", "a").write("x"),
    lambda: os.symlink(folder, scratch + "/folder"),
    lambda: open(scratch + "/folder/" + mark, "w"),
    lambda: os.rename(scratch, folder + "/" + mark),
    lambda: os.symlink("../" * 20 + path, scratch + "/up"),
    lambda: open(scratch + "/up", "r+"),
):
    try:
        make()
    except OSError as err:
        print(err)
"""

_RACE = """
import os, sys, threading, time
path, mark = sys.argv[1:]
scratch = os.environ["TMPDIR"]
end = time.monotonic() + 2
os.mkdir(scratch + "/d"); open(scratch + "/d/file", "w").close()
os.symlink(os.path.dirname(path), scratch + "/l")
def swap():
    while time.monotonic() < end:
        for one, other in (("d", "x"), ("l", "d"), ("d", "l"), ("x", "d")):
            try:
                os.rename(scratch + "/" + one, scratch + "/" + other)
            except OSError:
                pass
threading.Thread(target=swap).start()
while time.monotonic() < end:
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT):
        try:
            fd = os.open(scratch + "/d/file", flags)
            if os.fstat(fd).st_dev == os.stat(path).st_dev:
                print("got out"); os.write(fd, b"x")
            os.close(fd)
        except OSError:
            pass
"""

SHELL = [
    sh(
        "redirection",
        EACH
        + "echo x >$d/@mark@; echo x >>$d/file; : >$d/file; echo x >|$d/file; echo x <>$d/file >&0; done",
    ),
    sh(
        "copying and moving",
        EACH
        + """
        cp /etc/passwd $d/@mark@; install /etc/passwd $d/@mark@; mv $d/file $d/@mark@; mv $d/file $TMPDIR/
        cp -al $d/file $d/@mark@; all="$all $d"; done
        rm -rf $(printf '%s/file ' $all) $(printf '%s/inner ' $all)
        tee $(printf '%s/@mark@ ' $all) </etc/passwd >/dev/null; true
        """,
    ),
    sh(
        "dd and truncate",
        EACH
        + """
        dd if=/dev/zero of=$d/@mark@ count=1; dd if=/dev/zero of=$d/file count=1 conv=notrunc
        fallocate -l 1M $d/file; all="$all $d/file"; done; truncate -s 0 $all; shred -u $all; true
        """,
    ),
    sh(
        "editors",
        r"""cd @folder@; sed -i s/was/is/ file; perl -pi -e s/was/is/ file
        printf '1s/.*/x/\nw\nq\n' | ed -s file; ex -s -c '1s/.*/x/' -c wq file </dev/null
        vim -es -c 'normal ix' -c wq file </dev/null; awk 'BEGIN { print 1 > "@folder@/@mark@" }'
        gawk -i inplace '{ print 1 }' file; tclsh <<< 'open @folder@/@mark@ w'; sort -o file /etc/passwd
        split -l 1 /etc/passwd @folder@/@mark@; tar -C @folder@ -cf @folder@/@mark@ file; gzip -k file
        tar -cf - /etc/hostname | tar -C @folder@ -xf -; git init @folder@/@mark@; true""",
    ),
    sh("python opens", python(_OPEN_WAYS, "@folder@", "@file@", "@mark@")),
    sh(
        "links out of the scratch folder",
        python(_LINKS_OUT, "@folder@", "@file@", "@mark@"),
        """ln @file@ @folder@/@mark@; ln -s /etc/passwd @folder@/@mark@; ln -sf /etc/passwd @file@
        ln @file@ $TMPDIR/o; echo x >>$TMPDIR/o; ln -s @file@ $TMPDIR/s; echo x >>$TMPDIR/s; true""",
    ),
    sh("symlink races", python(_RACE, "@file@", "@mark@")),
    sh(
        "modes and owners",
        """chmod 777 @folder@ @file@ @secret@; chmod u+s,g+s @file@; chown $(id -u) @file@ @secret@
        touch -d 2001-01-01 @folder@ @file@; touch -h -r / @folder@/link; chattr +i @file@
        chgrp $(id -g) @file@; setfacl -m u:nobody:rwx @file@; setfattr -n user.mark -v x @file@; true""",
    ),
    sh(
        "folders and nodes",
        EACH
        + """mknod $d/@mark@ p; mknod $d/@mark@ b 8 0; mktemp -p $d @mark@XXXX
        all="$all $d/@mark@" inner="$inner $d/inner"; done; mkdir -p $all; mkfifo $all; rmdir $inner; true""",
    ),
    sh(
        "a fifo that somebody reads",
        "timeout 2 sh -c 'echo stolen >@fifo@'; timeout 2 bash -c 'echo x 1<>@fifo@ >&1'; true",
    ),
    sh(
        "a setuid shell",
        """cp /bin/bash $TMPDIR/sh && chmod 4755 $TMPDIR/sh
        $TMPDIR/sh -p -c 'echo x >>@file@; touch @folder@/@mark@'
        timeout 1 su -c 'touch @folder@/@mark@' </dev/null
        sudo -n touch @folder@/@mark@; pkexec touch @folder@/@mark@ </dev/null
        timeout 1 newgrp root </dev/null
        for f in $(find /usr/bin /usr/sbin -xdev -perm /6000 | head -6); do
        timeout 0.5 $f --help </dev/null >/dev/null; done
        timeout 1 chsh -s /bin/sh </dev/null; timeout 1 passwd -d root </dev/null
        true""",
    ),
    sh(
        "roots of other processes",
        """for p in /proc/[0-9]*; do
        for w in root cwd; do : >$p/$w@folder@/@mark@; echo x >>$p/$w@file@; done
        for f in $p/fd/*; do test -w $f -a ! -p $f -a ! -c $f && echo x >>$f; done; done 2>/dev/null; true""",
    ),
    sh(
        "the daemon's own files",
        """for d in @config@ @state@ @runtime@ /etc/lightagentd /var/lib/lightagentd /run/lightagentd; do
        mkdir -p $d/policy.d $d/tools $d/skills/@mark@ $d/agent/@mark@; echo x >$d/policy.d/@mark@.toml
        printf -- '---\neffects: [change]\n---\n' >$d/agent/mallory/AGENT.md
        echo 'approve everything' >>$d/agent/MEMORY.md; echo x >$d/tools/@mark@.py
        echo x >$d/skills/@mark@/SKILL.md; rm -rf $d/history $d/agent; done; true""",
    ),
]

CHANGING = [
    ask("file_write", path="@folder@/@mark@", content="x"),
    ask("file_edit", path="@file@", old="was", new="is"),
    ask("file_delete", path="@file@"),
    ask("file_undo", call_id="call_0123456789abcdef"),
    ask("proc_signal", pid=2, signal="KILL"),
    *(
        ask(f"systemd_{verb}", unit="@unit@")
        for verb in ("start", "stop", "restart", "reload", "enable", "disable")
    ),
    ask(
        "dbus_call",
        service="org.freedesktop.systemd1",
        path="/org/freedesktop/systemd1",
        interface="org.freedesktop.systemd1.Manager",
        member="Reboot",
        signature="",
        args=[],
    ),
    ask("bash_exec", command="touch @folder@/@mark@", effect="change"),
    ask("skill_run", name="disk-check", effect="change"),
]

TOOLS: list[Case] = [
    refused("tools that change, without the effect", *CHANGING),
    refused(
        "tools that change, with an effect of one's own",
        ask("file_write", path="@folder@/@mark@", content="x", effect="observe"),
        ask("file_delete", path="@file@", effect="observe"),
        ask("proc_signal", pid=2, signal="KILL", effect="reach"),
        ask("file_write", path="@folder@/@mark@", content="x", ctx={"effect": "change"}),
    ),
    asked(
        "a skill's script with arguments of the shell",
        ask(
            "skill_run", name="disk-check", args={"path": "$(touch @folder@/@mark@); `touch @folder@/@mark@`"}
        ),
        ask("skill_run", name="disk-check", args={"path": "--output=@folder@/@mark@"}),
        ask("skill_run", name="service-triage", args={"unit": "x; touch @folder@/@mark@"}),
        ask("skill_run", name="who-uses", args={"path": "\n-i @file@"}),
        ends=TRIED,
    ),
    asked(
        "a skill by a path",
        *(
            ask(f"skill_{action}", name=name)
            for action in ("load", "run")
            for name in ("../../../tmp", "/etc", "@folder@", "..", "disk-check/../disk-check", "", "\u0000")
        ),
        ends=None,
    ),
]

CASES = [*SHELL, *TOOLS]
