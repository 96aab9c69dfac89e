from __future__ import annotations

import pytest

from lightagentd.llm.runbook.names import Find, Names
from tests.conftest import REPOSITORY

NAMES = Names(
    units=frozenset(
        """
        nginx.service NetworkManager.service geoindex.service geoindex.timer nightly.timer dashboard.service
        backup.service backup.timer ssh.service ssh.socket mariadb.service apache2.service postgresql.service
        postgresql@.service postgresql@15-main.service cron.service systemd-resolved.service
        php8.2-fpm.service foo@.service foo@one.service foo@two.service getty@.service getty@tty1.service
        node_exporter.service worker-1.service worker-2.service network.target user.slice srv-data.mount
        cups.path catalog.service catalogs.service redis-server.service shipping-api.service sync.service
        syslog.socket pg_dump@.service
        """.split()  # noqa: SIM905  # a list of words
    ),
    users=frozenset(("anna", "joanna", "backup", "mail", "root", "deploy", "Backup2")),
    packages=frozenset(("nginx", "openssh-server", "file", "python3-requests", "libssl3", "nginxx", "time")),
    interfaces=frozenset(("eth0", "wg0", "enp3s0")),
    containers=frozenset(("web_shop", "geoindex")),
    mounts=frozenset(("/", "/srv/data", "/srv/old/data", "/home")),
)
WORDS = {"dashboards", "status", "backups", "catalogue"}


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("nginx", "unit nginx.service, package nginx"),
        ("Nginx's", "unit nginx.service, package nginx"),
        ("nginx.service", "unit nginx.service"),
        ("NGINX.SERVICE?", "unit nginx.service"),
        ("networkmanager", "unit NetworkManager.service"),
        ("network-manager", "unit NetworkManager.service"),
        ("geoindex", "unit geoindex.service, container geoindex"),
        ("geoindex.timer", "unit geoindex.timer"),
        ("geoindex.socket", ""),
        ("nightly", "ordinary unit nightly.timer"),
        ("cups", "unit cups.path"),
        ("network", "ordinary "),
        ("network.target", "unit network.target"),
        ("user", ""),
        ("user.slice", "unit user.slice"),
        ("foo@one", "unit foo@one.service"),
        ("foo@bar", "unit foo@bar.service"),
        ("foo@Bar.service", "unit foo@Bar.service"),
        ("foo@bar.timer", ""),
        ("fox@bar", ""),
        ("foo", ""),
        ("getty", "unit getty@tty1.service"),
        ("node-exporter", "unit node_exporter.service"),
        ("php-fpm", "unit php8.2-fpm.service"),
        ("php8.2-fpm", "unit php8.2-fpm.service"),
        ("php8.3-fpm", ""),
        ("sshd", "unit ssh.service, package openssh-server"),
        ("mysql", "unit mariadb.service"),
        ("httpd", "unit apache2.service"),
        ("postgres", "unit postgresql.service"),
        ("crond", "unit cron.service"),
        ("redis", "unit redis-server.service"),
        ("resolved", "ordinary unit systemd-resolved.service"),
        ("nginx-Dienst", "unit nginx.service, package nginx"),
        ("mongod", ""),
        # one letter missing, too many, wrong, and two swapped
        ("geoindx", "misspelled unit geoindex.service, container geoindex"),
        ("geoiindex", "misspelled unit geoindex.service, container geoindex"),
        ("geoindax", "misspelled unit geoindex.service, container geoindex"),
        ("goeindex", "misspelled unit geoindex.service, container geoindex"),
        ("geoidnex", "misspelled unit geoindex.service, container geoindex"),
        ("eoindex", "misspelled unit geoindex.service, container geoindex"),
        ("geoindx.timer", "misspelled unit geoindex.timer"),
        ("ngnix", "misspelled unit nginx.service, package nginx"),
        ("dashbord", "misspelled ordinary unit dashboard.service"),
        ("bakcup", "misspelled ordinary unit backup.service"),
        ("shiping-api", "misspelled unit shipping-api.service"),
        ("goendex", ""),
        ("worker-3", ""),
        ("catalogz", ""),
        ("catalogue", ""),
        ("ngix", ""),
        ("dashboards", ""),
        ("eth1", ""),
        ("enp3s1", ""),
        # ordinary words
        ("dashboard", "ordinary unit dashboard.service"),
        ("backup", "ordinary unit backup.service, user backup"),
        ("backups", ""),
        ("mail", "ordinary user mail"),
        ("file", "ordinary package file"),
        ("sync", "ordinary unit sync.service"),
        ("data", "ordinary path /srv/data"),
        ("home", "ordinary path /home"),
        # other kinds
        ("anna", "user anna"),
        ("Backup2", "user Backup2"),
        ("wg0", "interface wg0"),
        ("web_shop", "container web_shop"),
        ("python3-requests", "package python3-requests"),
        ("python3-reqests", "misspelled package python3-requests"),
        ("python3-request", ""),
        ("joanne", ""),
        ("hoanna", ""),
        ("joana", "misspelled user joanna"),
        ("mailq", ""),
        ("times", ""),
        ("pg-dump", ""),
        ("rsyslog", ""),
        ("", ""),
        ("?!", ""),
        ("x" * 100_000, ""),
    ],
)
def test_a_word_finds_what_exists_here(word: str, found: str) -> None:
    values = found.replace("misspelled ", "").replace("ordinary ", "")
    expected = {
        kind: Find(value=value, exact="misspelled" not in found, ordinary="ordinary" in found)
        for kind, value in (each.split() for each in values.split(", ") if each)
    }

    assert NAMES.find(word, WORDS.__contains__) == expected


def test_a_word_of_the_examples_is_ordinary_though_it_is_a_name() -> None:
    assert NAMES.find("catalog", {"catalog"}.__contains__)["unit"].ordinary
    assert not NAMES.find("catalog")["unit"].ordinary


def test_a_user_of_a_service_is_less_likely_than_the_service() -> None:
    found = Names(units=frozenset(("redis.service",)), users=frozenset(("redis",))).find("redis")

    assert (found["unit"].ordinary, found["user"].ordinary) == (False, True)


def test_many_names_alike_are_no_misspelling_of_each_other() -> None:
    names = Names(
        units=frozenset(f"worker-{chr(97 + i // 26)}{chr(97 + i % 26)}.service" for i in range(600))
    )

    assert names.find("worker-aa")["unit"] == Find(value="worker-aa.service")
    assert not names.find("worker-a")


@pytest.mark.parametrize(
    ("unit", "slip"), [("geoindex", "geoindx"), ("dashboard", "dashbaord"), ("shipping-api", "shiping-api")]
)
def test_a_unit_and_no_other_is_found_in_every_phrasing(unit: str, slip: str) -> None:
    lines = (REPOSITORY / "tests/data/unit_phrasings.txt").read_text(encoding="utf-8").splitlines()
    for phrasing in lines[1:]:
        prompt = phrasing.format(unit=unit, slip=slip)
        found = {find.value for word in prompt.split() for find in NAMES.find(word).values()}
        assert f"{unit}.service" in found, prompt
        assert found <= {f"{unit}.service", unit}, prompt
