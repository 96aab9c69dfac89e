"""Which commands count as ones that only look."""

from __future__ import annotations

import pytest

from lightagentd.policy.observing import observes

LOOKS = """
df -h
du -sh /var/* 2>/dev/null | sort -rh | head -n 5
sudo journalctl -u nginx --since today -p err
systemctl status nginx
systemctl --failed
systemctl
systemctl --no-pager list-units
ip addr
ip -br a show eth0
ip route get 192.0.2.1
ss -tlnp
ps aux | awk '{print $1}' | sort | uniq -c
top -bn1 | head
find /var/log -name '*.log' -size +10M
cat /proc/mdstat && uptime; free -m
dpkg -l openssh-server
docker ps -a
sed -n 1,20p /etc/hosts
grep "out of memory" /var/log/syslog || true
crontab -l -u root
mount
hostname -f
awk -F: '{print $1}' /etc/passwd
""".strip().splitlines()
CHANGES = """
systemctl restart nginx
systemctl --now enable nginx
systemctl edit x
rm -rf /tmp/x
df -h > /tmp/report
df -h & reboot
journalctl -fu nginx
journalctl --vacuum-size=1G
find / -name core -delete
find / -exec rm {} +
echo $(reboot)
echo "$(reboot)"
echo `reboot`
ip link set eth0 down
ip addr add 192.0.2.1/24 dev eth0
sysctl -w vm.swappiness=10
sysctl vm.swappiness=10
awk 'BEGIN { system("reboot") }'
sed -i s/a/b/ /etc/hosts
tail -f /var/log/syslog
sort -o /etc/hosts /etc/hosts
date -s 12:00
mount /mnt
unknown-program --status
docker logs -f web
docker rm web
ss -K dst 192.0.2.1
cat /etc/hosts | tee /etc/hosts.bak
curl https://example.org
if true
top
dmesg -C
hostname other
uniq a b
FOO=bar env
""".strip().splitlines()


@pytest.mark.parametrize("command", LOOKS)
def test_what_only_looks_is_known(command: str) -> None:
    assert observes(command)


@pytest.mark.parametrize("command", [*CHANGES, "", "|", "df |", "'", "df\nrm x", "df \\", "x" * 100_000])
def test_anything_else_counts_as_a_change(command: str) -> None:
    assert not observes(command)
