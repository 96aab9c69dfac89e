"""The stems of words, and the names of well-known services."""

from __future__ import annotations

from functools import lru_cache


def listed(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_IRREGULAR = {
    "nice": "nice",
    "boots": "boots",
    "log": "log",
    "logs": "log",
    "logging": "log",
    "logged": "logged",
    "dns": "dns",
    "ss": "ss",
    "su": "su",
    "used": "us",
    "using": "us",
    "use": "us",
    "uses": "us",
    "ran": "run",
    "held": "hold",
    "ate": "eat",
    "died": "die",
    "dying": "die",
    "dies": "die",
    "ok": "ok",
    "errs": "err",
    "erring": "err",
    "gone": "go",
    "full": "full",
    "filled": "fill",
    "filling": "fill",
    "ips": "ip",
    "taken": "tak",
    "took": "tak",
    "bytes": "byt",
    "os": "os",
    "cpus": "cpu",
    "vcpus": "cpu",
    "gpus": "gpu",
    "tls": "tls",
    "ports": "port",
    "ls": "ls",
    "news": "news",
    "crashloop": "crashloop",
    "dead": "dead",
    "being": "be",
    "driving": "driving",
    "needed": "need",
    "wrote": "writ",
    "written": "writ",
    "grown": "grow",
    "loading": "load",
    "loaded": "load",
    "goes": "go",
    "going": "go",
    "does": "do",
    "doing": "doing",
    "came": "com",
    "fell": "fall",
    "ps": "ps",
    "got": "get",
    "getting": "get",
    "gotten": "get",
    "went": "go",
    "patches": "patch",
    "patched": "patch",
    "broken": "broken",
    "expose": "expos",
    "grabbed": "grab",
    "hung": "hung",
}
_VOWELS = frozenset("aeiouy")
SERVICES = listed(
    """
acpid alertmanager anacron apache apache2 atd auditd avahi avahi-daemon bind9 bluetooth bluetoothd caddy
celery certbot-renew chrony chronyd clamav clamd collectd consul-agent containerd corosync crio cron crond
cupsd dbus dbus-daemon dnsmasq docker dockerd dovecot drbd elasticsearch etcd exim exim4 fail2ban firewalld
freeradius gdm gdm3 getty gitea gitlab gitlab-runner grafana grafana-server gunicorn haproxy homeassistant
httpd icinga2 influxdb iptables irqbalance iscsid jellyfin jenkins jetty journald k3s kafka keepalived
kibana krb5kdc kubelet libvirtd lightagentd lightdm lighttpd logind logrotate logstash loki lvm2-monitor
mariadb mariadbd mdadm memcached minio modemmanager mongod mongodb mosquitto multipathd mysql mysqld nagios
networkd networkmanager nextcloud nfs-server nfsd nftables nginx nmbd node_exporter nomad-client nscd ntp
ntpd opendkim opensearch openvpn pacemaker pgbouncer php-fpm pihole-ftl pipewire plexmediaserver podman
polkit postfix postgres postgresql proftpd prometheus promtail pulseaudio puppet-agent qemu rabbitmq
rabbitmq-server redis redis-server resolved rpcbind rspamd rsyslog rsyslogd salt-minion samba sddm sendmail
slapd smartd smbd snapd spamassassin squid ssh sshd sssd strongswan supervisor supervisord syslog-ng
systemd-journald systemd-logind systemd-networkd systemd-resolved systemd-timesyncd systemd-udevd tailscale
tailscaled telegraf thermald timesyncd tomcat tomcat10 tomcat9 traefik udevd ufw unattended-upgrades unbound
upower uwsgi varnish vault-agent vsftpd wildfly winbind wireguard wpa_supplicant zabbix-agent zabbix-server
zookeeper
"""
)
"""Names that are units when they stand alone."""


@lru_cache(maxsize=8192)
def stem(word: str) -> str:
    """One form for `fail`, `fails`, `failed`, `failing`; cheap, and only ever compared with itself."""
    known = _IRREGULAR.get(word)
    if known is not None:
        return known
    word = word.removesuffix("'s").replace("'", "")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for suffix in ("ing", "ed"):
        base = word.removesuffix(suffix)
        if base != word and len(base) > 2 and _VOWELS & set(base):
            word = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
