"""What the kernel's log, /proc/mdstat, crontabs and engines of containers say: real output, in tables."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.skills.library import module
from tests.skills.script import finding, report

kernel, storage, timers = module("areas.kernel"), module("areas.storage"), module("areas.timers")
containers, limits = module("areas.containers"), module("areas.limits")
systemd_units = module("systemd_units")
NOW = time.time()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "The kernel had an oops"),
        ("Oops: 0002 [#1] PREEMPT SMP NOPTI", "The kernel had an oops"),
        ("watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [stress:912]", "A processor hung"),
        ("INFO: task kworker/0:1:17 blocked for more than 120 seconds.", "Tasks hung"),
        ("mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: b200000000070f0f", "The hardware reported"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "MC0 1 time"),
        ("CPU2: Core temperature above threshold, cpu clock throttled (total events = 1)", "too hot"),
        ("nginx[812]: segfault at 0 ip 00007f sp 00007ff error 4 in libc.so.6", "nginx 1 time"),
        ("traps: app[99] general protection fault ip:7f sp:7f error:0 in app", "app 1 time"),
        ("mce: CPU0: Thermal monitoring enabled (TM1)", ""),
        ("MCE: In-kernel MCE decoding enabled.", ""),
        ("workqueue: some text", ""),
    ],
)
def test_kinds_of_kernel_messages(text: str, told: str) -> None:
    found = kernel.groups([(NOW, text)])
    assert [told in group.told() for group in found] == ([True] if told else [])


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0", "disk sda"),
        ("blk_update_request: critical medium error, dev nvme0n1, sector 7", "disk nvme0n1"),
        ("Buffer I/O error on dev dm-0, logical block 1, async page read", "disk dm-0"),
        ("ata3.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x0", "disk ata3"),
        (
            "EXT4-fs error (device sdb1): ext4_find_entry:1455: inode #2: comm ls: reading directory",
            "on sdb1",
        ),
        ("EXT4-fs (sdb1): Remounting filesystem read-only", "made it read-only"),
        ("XFS (dm-3): Metadata corruption detected at xfs_agf_read_verify", "on dm-3"),
        ("BTRFS error (device sdc: state EA): parent transid verify failed", "on sdc"),
        ("BTRFS info (device sdc): using crc32c", ""),
        ("I/O error, dev fd0, sector 0 op 0x0:(READ)", ""),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode", ""),
    ],
)
def test_errors_of_disks_name_the_device(text: str, device: str) -> None:
    found = storage.errors([(NOW, text)])
    assert [device in one.told() for one in found] == ([True] if device else [])


MDSTAT = """Personalities : [raid1]
md0 : active raid1 sdb1[1](F) sda1[0]
      1046528 blocks super 1.2 [2/1] [U_]

md1 : active raid1 sdb2[1] sda2[0]
      5236736 blocks super 1.2 [2/2] [UU]

md2 : active raid5 sdd1[3] sdc1[1] sdb3[0]
      2093056 blocks super 1.2 [3/2] [UU_]
      [=>...................]  recovery =  9.8% (103296/1046528) finish=0.3min speed=51648K/sec

unused devices: <none>
"""


def test_arrays_that_lost_a_disk_are_degraded() -> None:
    assert storage.arrays(MDSTAT) == [
        ("md0", "degraded, 1 of 2 disks work, failed: sdb1", True),
        ("md1", "active", False),
        ("md2", "degraded, 2 of 3 disks work, recovery at 9.8%", True),
    ]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/sdx", "There is no such disk: /dev/sdx. This machine has nvme0n1, sda."),
        ("/dev/sda7", "There is no such disk: /dev/sda7. This machine has nvme0n1, sda."),
        ("/dev/nvme9n1p1", "There is no such disk: /dev/nvme9n1p1. This machine has nvme0n1, sda."),
        ("/dev/sda", ""),
        ("/dev/sda1", ""),
        ("/dev/mapper/none", ""),
        ("/srv/sdx", ""),
    ],
)
def test_a_disk_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, path: str, said: str) -> None:
    for name in ("sda", "sda1", "nvme0n1", "dm-0", "loop0"):
        (tmp_path / name).mkdir()
    (tmp_path / "sda1" / "partition").touch()
    assert storage.no_such_disk(path, tmp_path) == said
    assert storage.no_such_disk(path, tmp_path / "none") == ""


@pytest.mark.parametrize("name", ["storage-health", "disk-check", "mount-check", "who-uses"])
def test_a_report_on_a_disk_that_is_not_there_says_so_first(name: str) -> None:
    assert finding(report(name, path="/dev/sdzz9")).startswith("There is no such disk: /dev/sdzz9. This")


def test_cron_says_nothing_of_what_it_ignores_and_the_check_does(tmp_path: Path) -> None:
    (tmp_path / "debian_version").write_text("13\n")
    for name, text, mode in (
        ("cron.d/good", "PATH=/bin\n# m h\n*/5 * * * * root /bin/true\n@daily root /bin/true\n", 0o644),
        ("cron.d/backup.sh", "1 2 * * * root /bin/true\n", 0o644),
        ("cron.d/nobody", "1 2 * * * nobody-here /bin/true\n", 0o644),
        ("cron.d/fields", "1 2 * * root\n", 0o644),
        ("cron.d/hour", "0 25 * * * root /bin/true\n*/70 0-23/2 1,15 * mon root /bin/true\n", 0o644),
        ("cron.d/end", "1 2 * * * root /bin/true", 0o644),
        ("cron.daily/script", "#!/bin/sh\n", 0o644),
        ("cron.daily/.placeholder", "", 0o644),
        ("cron.weekly/fine", "#!/bin/sh\n", 0o755),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    told = sorted(text.removeprefix(f"{tmp_path}/") for text in timers.cron_faults(str(tmp_path)))
    assert [line.partition(" ")[0] for line in told] == [
        "The",
        "cron.d/backup.sh",
        "cron.d/fields",
        "cron.d/hour",
        "cron.d/nobody",
        "cron.daily/script",
    ]
    assert "cron.d/end" in told[0]


def test_files_that_changed_are_told_the_newest_first() -> None:
    written = [
        path.lstat().st_mtime for path in Path("/etc").rglob("*") if not path.is_dir() or path.is_symlink()
    ]
    text = report("what-changed", since="2000-01-01")
    rows = re.findall(r"^\| (/etc/\S+) \| changed", text, re.M)
    assert Path(rows[0]).lstat().st_mtime == max(written)
    assert f"the newest file is {rows[0]};" in finding(text)
    times = [Path(row).lstat().st_mtime for row in rows]
    assert times == sorted(times, reverse=True)


def test_a_job_of_cron_that_failed_is_told_by_its_command() -> None:
    lines = [
        ("(root) CMD (/usr/local/bin/rotate 2>&1)", "40711"),
        ("(ann) CMD (true)", "40712"),
        ("(CRON) error (grandchild #40711 failed with exit status 3)", "40710"),
        ("(CRON) error (grandchild #9 failed with exit status 1)", "8"),
        ("(*system*x) ERROR (Missing newline before EOF)", "7"),
    ]
    entries = [{"MESSAGE": text, "SYSLOG_PID": pid} for text, pid in lines]
    assert sorted(said for _, said in timers.errors_of_cron(entries)) == [
        "The cron job /usr/local/bin/rotate 2>&1 of root failed with status 3.",
        "cron: (*system*x) ERROR (Missing newline before EOF).",
        "cron: (CRON) error (grandchild #9 failed with exit status 1).",
    ]


@pytest.mark.parametrize(
    ("unit", "job", "words"),
    [
        ('LoadState=bad-setting\nLoadError=x "No such calendar"', "LoadState=loaded", "cannot be loaded"),
        ("SubState=elapsed", "LoadState=loaded", "has never run and has no next run"),
        (
            "SubState=waiting\nNextElapseUSecRealtime=Tue 2099-11-24 00:00:00 UTC",
            "LoadState=masked",
            "is masked",
        ),
        ("SubState=waiting\nNextElapseUSecRealtime=Tue 2099-11-24 00:00:00 UTC", "LoadState=loaded", ""),
        ("SubState=elapsed\nLastTriggerUSec=Tue 2020-11-24 00:00:00 UTC", "LoadState=loaded", ""),
    ],
)
def test_timers_that_cannot_run_their_job(unit: str, job: str, words: str) -> None:
    [one, other] = systemd_units.parsed(
        f"ActiveState=active\n{unit}\nTriggers=a.service\nNextElapseUSecMonotonic=infinity\nId=a.timer\n\n{job}\nId=a.service"
    )
    _, text = timers.trouble(timers.timer(one), other)
    assert words in text
    assert bool(text) == bool(words)


def inspected(**state: Any) -> Any:
    row = {"Id": "f00", "Name": "/web", "RestartCount": 3, "State": state, "Config": {"Image": "nginx"}}
    return containers.inspected("docker", row)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"Status": "running", "StartedAt": "2026-01-31T14:00:05.123456789Z"}, ""),
        ({"Status": "running", "Health": {"Status": "unhealthy"}}, "its health check fails"),
        (
            {"Status": "restarting", "ExitCode": 2},
            "crashes again and again, after 3 restarts, the last with status 2",
        ),
        ({"Status": "exited", "ExitCode": 127, "FinishedAt": ""}, "with status 127 (command not found)"),
        ({"Status": "exited", "ExitCode": 0, "FinishedAt": ""}, ""),
        ({"Status": "exited", "ExitCode": 1, "FinishedAt": "2020-01-31T14:00:05Z"}, ""),
        ({"Status": "created", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"}, ""),
    ],
)
def test_containers_that_have_a_problem(state: dict[str, Any], words: str) -> None:
    one = inspected(**state)
    assert one.is_wrong == bool(words)
    assert words in one.told()


def test_a_limit_is_told_with_its_number_and_its_setting() -> None:
    use = limits.Use("open files", "pid 7 (app) of app.service", 1000, 1024, "LimitNOFILE=", 7, "app.service")
    assert (
        use.told()
        == "pid 7 (app) of app.service has 1000 of 1024 open files (98%): LimitNOFILE= is the limit."
    )


def test_the_kernels_log_of_rsyslog_is_read_in_both_forms() -> None:
    text = (
        "2026-11-24T00:10:00.123456+00:00 db kernel: [   12.345678] I/O error, dev sda, sector 8\n"
        "Nov  4 00:11:02 db kernel: [   99.1] EXT4-fs (sda1): mounted\nNov 24 00:11:02 db app[1]: hello\n"
    )
    lines = module("kernel_log")._rsyslog(text)
    assert [line[1] for line in lines] == ["I/O error, dev sda, sector 8", "EXT4-fs (sda1): mounted"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            ["Stopped target x", "Reached target reboot.target - System Reboot.", "Journal stopped"],
            "was clean",
        ),
        (
            ["alice : TTY=pts/0 ; USER=root ; COMMAND=/usr/sbin/reboot", "System is rebooting."],
            "(alice ran /usr/sbin/reboot)",
        ),
        (["The system will power off now!", "Shutting down."], "(The system will power off now!)"),
        (["app: all is well", "sshd: accepted"], "without a clean shutdown"),
        (["Kernel panic - not syncing: Fatal exception"], 'after "Kernel panic - not syncing'),
    ],
)
def test_how_a_boot_ended(texts: list[str], words: str) -> None:
    assert words in module("areas.boot").ended(texts, NOW).told()
