"""The words that the matcher of the `runbook` model knows beside those of the skills.

Only lists and small pure functions: words that carry no topic (`NEUTRAL`), verbs that ask to change or to
make something (`CHANGE_VERBS`), words of other subjects (`OFF_TOPIC`), names of services (`UNITS`), stems
and typos. What points at one skill stands in the front matter of that skill, not here.
"""

from __future__ import annotations

from collections.abc import Iterable


def words(text: str) -> frozenset[str]:
    """The words of a list that is written as text."""
    return frozenset(text.split())


NEUTRAL = words(
    """
terrible awful horrible lousy poor acting acts acted desk fullest closest closes closer script scripts roof
fire fires fired firing spam spamming spams tight heavy tense backdoor backdoors lapse lapsed lapses exhaust
exhausted exhaustion ro rw mb kb pb borked busted hosed toast toasted chew chewing gobble
gobbling guzzle guzzling hammer hammers swallow swallowing devour devouring flood flooding flooded openssl
deleted delete's footprint hit hits hitting kicks kicked tank tanked tanking jump jumped jumps climb
climbing skyrocket skyrocketing rocket drain draining drained bleed bleeding choke choking choked drown
drowning suffer suffering burst bursts spiking bump bumps creep creeping swell ballooning balloon explode
exploded exploding dog-slow gone missing lost vanish vanished disappear disappeared unexplained mystery
mysterious rogue stray zombie zombies orphan orphaned defunct offenders victim victims suspect suspects
suspected sanity gist scoop story-of headline headlines bottom line heads-up alarm alarms warn nagios zabbix
says complains yells yelling screaming shouting crying dying silent quiet internal external private public
inbound outbound upstream downstream vendor third-party wildcard self-signed intermediate valid validity
good-for handshake chain bundle proxy's portal intranet extranet staging's production's activity best better
worst same driving town a about above actual actually after again all almost alone along already also always
am an and another any anybody anyone anything anytime apparently are area around as ask at away back
basically be because been before being below between big bit boss both box boxes bring brief briefly but by
call called came can cannot cant chance check checking checkup client clients clue cluster colleague
colleagues come comes coming complaining concerned confirm console container containers correct could
couldnt count curious current currently customer customers daily data database databases day days db dear
debian detail details dev developer developers diagnose diagnostic did didnt different display do does
doesnt doing done dont dos down due during each early else end enough environment even ever every everybody
everyone everything evidence exact exactly except fast fedora feel feels few figure find fine first five for
found four from funny gave get gets getting give given glance go goes going good got great guess guest guys
had happening happens hardware has have having hello help here hey hi hold home hopefully host hosts hour
hours house how however i idea if im immediately in info inform information infra inside inspect install
installed instance instances instead into investigate is isnt it its itself ive job jobs just keep keeps
kernel kind know last late later latest laptop learn least let lets level like likely linux list listed
little local long look looking looks lot lots machine machines main make many matter may maybe me mean
mention might mind mine minute minutes moment monday month months more morning most mostly much must my name
named names near need needed needs new next nice night no nobody node nodes none nope normal normally not
nothing notice noticed now number numbers of off often oh ok okay old on once one ones only onto op
operating ops or order os other others our ours out output over overall overview own past people per percent
perhaps person place plain please pls plz point possible possibly present pretty previous print probably
problematic prod production program programs properly pull put question quick quickly quite rather readout
ready real really reason recent recently red remaining report reported reporting results result rhel right
room run running saw say saying score second see seeing seem seems seen server servers service several shall
she should show showing side since single site sites situation six small so software some somebody somehow
someone something sometimes somewhere soon sorry sort staging stage start state stats statistics status
still stuff such sudden suddenly sum summary summarize sure system systems take taken taking tell ten
terribly test than thank thanks that thats the their them then there theres these they thing things think
thinking this those three through thx till time times to today together told tomorrow tonight too total
totally tree trying try turn two ubuntu um under understand until us usual usually verify version very via
view virtual vm vms vps want wants was wasnt way we week weeks well went were what whatever whats when
whenever where whether which while who whole whom whos whose why will with within without wonder wondering
wont work works worried worse would wouldnt wrong wtf www yeah year years yes yesterday yet yo you your
yours accessible accept actively ago analysis analyse analyze anomalies app apps application applications
appear applied attention audit autumn bare based become becoming begin behaving besides beyond bot brand
breakdown bunch care case cause caused causing certain cloud configured consider constantly consuming
consumption consumer consumers contains could's culprit deep default deployed describe desktop detect
detected device devices directly dive docker's double dump earlier easy effect entire environments
especially estate evening exist existing exists explain extra fact fairly far feeling fellow fetch fleet
forever form fresh friend friday full fun gimme globally gonna gotta group guy half hand hanging happened
head headless hear heck hell hence hint holy honest hmm hop huge identify important include including
indicate inspection interested it'd kinda kindly lab lately layout lead leave left less load lunch macro
major man managed manager mate measure metal metric metrics mini monitor monitoring mood moved moving noon
obvious obviously occur occurred occurring odd offending offender operations ought overnight owned pair part
particular partly parts peek plus potential pronto proper provide python java perl ruby php process
processes quickest raise random range rate read regarding related remember remote rest rising rough roughly
rundown saturday scan schedule seriously shape share sign significant silently simple simply slightly smart
snapshot somewhat specific spot standing stand standpoint starting stay step stopped strange stretch
struggling sunday supposed sweep talk team tested thursday tiny top track tuesday type typical uh unless
unusual up upon used useful user users using utc various visible watch wednesday weekend whats'up wherever
wise word worry worth yep zone okey alright asap cheers ta fyi btw lol literally bloody damn darn freaking
cpu's looked checked happen moan moaning grumbling whining said tells telling kept everybody's nobody's
folks ping'd office business prod's shop shops store web website websites webserver backend frontend api
apis endpoint endpoints gateway proxy balancer deploy deployment release releases pipeline build builds cron
kubernetes cluster's pod pods image images auditor auditors compliance manager's cto admin admins
administrator administrators sysadmin root's tenant tenants rack datacenter dc region primary secondary
replica master slave standby failover colo hypervisor physical postmortem incident oncall pager alerting
grafana's dashboard dashboards ticket tickets handover shift healthy clear clean whatsoever whichever anyhow
anyway anyways honestly frankly weirdly randomly consistently constant continuous continuously frequent
frequently occasionally periodic periodically visibly noticeably extremely super insanely crazy ridiculously
absurdly awfully mighty unusually got'em gotten lemme lookup dig deeper quick-check sanity-check healthcheck
double-check triage myself ourselves themselves yourself nearly approximately maximum minimum max min avg
average peak peaks abnormal baseline high higher highest low lower lowest bigger biggest smaller smallest
longest shortest oldest newest upcoming history troubleshoot debug diagnostics longer shorter weird lose
table tables starved mad terminal badly neighbours neighbour neighbors flaky depend config configuration
configs settings setting alarming barely ages delays delay delayed vs unexpectedly spontaneously
"""
)
"""Words that say nothing about the topic: a chatty prompt is still about the words that remain."""

CHANGE_VERBS = words(
    """
speed accelerate boost activate add adjust alert allocate allow apply archive assign attach backup ban block
bounce bring build cancel change chmod chown cleanup clear clone close commit compile compress configure
connect convert copy create cut deactivate defrag defragment delete deny deploy destroy detach disable
disallow disconnect downgrade download drain drop edit eject empty enable encrypt decrypt end enforce
enlarge erase exec execute expand expose extend extract fail2ban fix flash flush force format forward fsck
generate grant grow harden halt hibernate improve ensure import increase decrease insert install invoke
issue join kick kill launch limit lock logout lower make migrate mkdir mkfs modify mount move notify nuke
open optimise optimize overwrite page partition patch pause permit prune purge put quarantine raise reboot
rebuild recompile reconfigure recover recreate redeploy redirect reduce refresh register reinstall release
reload relocate remind remount remove rename renew renice reopen repair replace reset resize respawn restart
restore resume revert revoke rm rmdir rollback rotate scale schedule send set setup shred shrink shutdown
sleep snooze solve spawn start stop suspend switch swapoff swapon sync terminate throttle touch toggle trim
truncate tune turn unblock undo uninstall unlock unmount umount unset unzip update upgrade upload use vacuum
wipe write zap zip mv cp dd agree bake book buy calculate call compare compose conclude cook count-down
dance define design draw draft fly imagine invent invite joke learn marry order paint play pretend program
recommend recite rewrite roleplay sell simulate sing speak spell suggest teach translate type proofread
paraphrase
"""
)
"""In the place of a command these ask for something that no runbook does."""

VERB_NOUNS = words(
    """
attempt attempts available check count error errors event events failure failures fails failed history info
issue issues level list log logs message messages needed necessary outstanding pending points problem
problems process reason reasons required requirement schedule space status state time times usage report
statistics stats daemon service config
"""
)
"""After one of these nouns a change verb is no command: `reboot history`, `update status`."""

OFF_TOPIC = words(
    """
gaming gamer apple apples orange jockey golf poem poems joke jokes story stories song songs lyrics movie
movies film weather recipe recipes cook capital president football soccer basketball game games music essay
resume novel horoscope restaurant restaurants sale sales cheap price prices buy shopping discount foam
mattress wine beer coffee pizza camp shoes leather german french spanish english italian chinese japanese
language vim emacs nano birthday wedding vacation holiday flight flights hotel brain childhood dream dreams
love girlfriend boyfriend wife husband kids dogs cats baby politics election stock stocks bitcoin crypto
currency invest bank loan mortgage insurance lawyer doctor medicine diet exercise gym workout planet moon
sun stars dinosaur history-of meaning definition versus tutorial course lesson homework thesis haiku
limerick riddle trivia marketing linkedin facebook instagram tiktok twitter youtube netflix spotify whatsapp
regex javascript typescript rust golang haskell css html difference recommend recommendation invented
inventor philosophy religion god bible cabin timber fishing fish boat ship ships cruise harbour harbor
rotterdam hamburg paris london berlin tokyo france germany italy spain europe africa america gift birth
deposit degree university school college student teacher exam marriage divorce death human humans animal
animals car cars truck train trains driver's license passport visa tennis chess poker rugby cricket hockey
skateboard bike bicycle yoga meditation novels author book books poet poetry museum painting sandwich dinner
breakfast cheese chocolate tea soup trousers shirt dress fashion dj vinyl record-label cardio cost costs pay
salary ceo founder founders owner's raspberry cake kettle fridge dishes garden tree trees flower flowers
river mountain sea beach swim sport sports match team's bus taxi airport hamburger burger actor actress
celebrity singer band album concert ticket-price cinema theatre theater army navy war king queen minister
tax taxes interview career hire hiring colleague's marry sleep bed dogecoin ethereum mars alien aliens ghost
psychology therapy anxiety happy-birthday greeting santa christmas easter halloween disney marvel batman
pokemon minecraft fortnite
"""
)
"""One of these and the prompt is about something else."""

UNITS = words(
    """
nginx apache apache2 httpd lighttpd caddy traefik haproxy varnish squid mysql mysqld mariadb mariadbd
postgres postgresql pgbouncer redis redis-server memcached mongodb mongod elasticsearch opensearch logstash
kibana influxdb grafana grafana-server prometheus node_exporter alertmanager loki promtail telegraf collectd
zabbix-agent zabbix-server nagios icinga2 rabbitmq rabbitmq-server kafka zookeeper docker dockerd containerd
podman crio kubelet k3s etcd ssh sshd cron crond atd anacron chrony chronyd ntp ntpd systemd-timesyncd
systemd-resolved systemd-networkd systemd-journald systemd-logind systemd-udevd networkmanager modemmanager
wpa_supplicant bind9 dnsmasq unbound pihole-ftl postfix dovecot exim exim4 sendmail opendkim rspamd
spamassassin clamav clamd fail2ban ufw firewalld nftables iptables rsyslog rsyslogd syslog-ng auditd polkit
dbus dbus-daemon snapd avahi avahi-daemon cupsd bluetooth bluetoothd smbd nmbd samba nfs-server nfsd rpcbind
vsftpd proftpd openvpn wireguard strongswan tailscaled tailscale libvirtd qemu keepalived corosync pacemaker
drbd jenkins gitlab gitlab-runner gitea tomcat tomcat9 tomcat10 wildfly jetty gunicorn uwsgi celery
supervisor supervisord php-fpm mosquitto minio nomad-client consul-agent puppet-agent salt-minion
unattended-upgrades logrotate certbot-renew plexmediaserver jellyfin homeassistant nextcloud lightdm gdm
gdm3 sddm pipewire pulseaudio udevd journald resolved networkd timesyncd logind slapd sssd winbind
freeradius krb5kdc vault-agent nscd smartd mdadm multipathd iscsid lvm2-monitor irqbalance thermald upower
acpid getty lightagentd
"""
)
"""Names of services that are units when they stand alone; others need `service`, a suffix or other words."""

_PROPER = {"networkmanager": "NetworkManager", "modemmanager": "ModemManager"}
_SHORT = {"udevd", "journald", "resolved", "networkd", "timesyncd", "logind"}
_IRREGULAR = {
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


def unit_name(word: str) -> str:
    """The unit that a service's name means: `nginx` is `nginx.service`, a suffix stays."""
    lower = word.lower()
    if lower in _SHORT:
        return f"systemd-{lower}.service"
    name = _PROPER.get(lower, lower if lower in UNITS else word)
    return f"{name}.service"


class Speller:
    """Mends one wrong, missing, doubled or swapped letter in a word of five letters, and a swap in four."""

    def __init__(self, targets: Iterable[str], known: Iterable[str]) -> None:
        """`targets` are what a word may be mended to, `known` what is right as it is."""
        words = {word for word in targets if word.isalpha() and len(word) > 3}
        self._targets = words | {form for word in words for form in _inflections(word)}
        self._known = set(known) | set(targets) | self._targets
        self._stems = {stem(word) for word in self._known}
        self._by_gap: dict[str, list[str]] = {}
        for word in sorted(self._targets):
            for gap in _gaps(word) | {_squashed(word)}:
                self._by_gap.setdefault(gap, []).append(word)

    def knows(self, word: str) -> bool:
        return word in self._known or stem(word) in self._stems

    def mend(self, word: str) -> str:
        """The known word that this one most likely is, or the word itself."""
        if len(word) < 4 or not word.isalpha() or self.knows(word):
            return word
        found = sorted(
            {
                other
                for gap in _gaps(word) | {_squashed(word)}
                for other in self._by_gap.get(gap, ())
                if _one_slip(word, other)
            },
            key=lambda other: (other[0] != word[0], abs(len(other) - len(word)), other),
        )
        return found[0] if found else word


def _inflections(word: str) -> set[str]:
    root = word.removesuffix("e")
    return set() if word.endswith(("s", "ing", "ed")) else {f"{word}s", f"{root}ing", f"{root}ed"}


def _gaps(word: str) -> set[str]:
    return {word} | {word[:at] + word[at + 1 :] for at in range(len(word))}


def _squashed(word: str) -> str:
    """The word with doubled letters once: `proccesor` and `processor` are the same then."""
    return "".join(letter for at, letter in enumerate(word) if at == 0 or word[at - 1] != letter)


def _one_slip(word: str, other: str) -> bool:
    if _squashed(word) == _squashed(other):
        return len(word) > 4
    if sorted(word) == sorted(other):
        differing = [at for at in range(len(word)) if word[at] != other[at]]
        return len(differing) == 2 and differing[1] - differing[0] == 1
    if min(len(word), len(other)) < 4 or abs(len(word) - len(other)) > 1:
        return False
    if len(word) == len(other):
        wrong = [at for at in range(len(word)) if word[at] != other[at]]
        if len(wrong) != 1 or len(word) < 5 or not 0 < wrong[0] < len(word) - 1:
            return False
        return len(word) > 6 or {word[wrong[0]], other[wrong[0]]} <= _VOWELS
    longer, shorter = (word, other) if len(word) > len(other) else (other, word)
    slips = [at for at in range(len(longer)) if longer[:at] + longer[at + 1 :] == shorter]
    return bool(slips) and (len(longer) > 5 or len(slips) > 1)
