"""The words that the matcher of the `runbook` model knows beside those of the skills; only lists.

Words that carry no topic (`NEUTRAL`), verbs that ask to change or to make something (`CHANGE_VERBS`), groups
of synonyms (`GROUPS`), and names of services (`UNITS`). Words for one skill are in the front matter of that
skill, not here; words for no skill are in `elsewhere`.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a list that is written as text."""
    return frozenset(text.split())


NEUTRAL = words(
    """
a abnormal about above absurdly accept accessible accident accumulate accumulates accumulating acquire
across act acted acting actively activity acts actual actually admin administrator administrators admins
advance affect affects aforementioned after afterwards again aged ages ago alarm alarming alarms alert
alerting alike all almost alone along already alright also always am amid amount an analyse analysis analyze
ancient and announce announces annoying annual anomalies anomalous another answer answers any anybody anyhow
anyone anything anytime anyway anyways api apis app apparently appear appears application applications
applied appreciate appreciated approximately apps april are area arise arises arose around as asap ascending
ask assume at attached attention audit audit-wise auditor auditors august autumn average avg away awful
awfully back backdoor backdoors backend badly balancer balloon ballooning bare barely based baseline
basically be because become becoming been before beforehand begin beginner beginning behave behaves behaving
being believe belong belongs below beneath besides best better between beyond big big-picture bigger biggest
bit blame bleed bleeding bloody borked boss bot both bottom box boxes brand brand-new breached breakdown
brief briefly bring btw build builds bump bumps bunch bundle burst bursts business busted but by call called
came can cannot cant care case cause caused causes causing certain chain chance chaos chart charts check
checked checking checkup cheers chew chewing choke choked choking clean clear client clients climb climbing
closer closes closest cloud clue cluster cluster's colleague colleagues colo column columns come comes
coming compact comparable compile complained complaining complains complete compliance concern concerned
concerns concise config configs configuration configured confirm confusing consider considerable
consistently console constant constantly consumer consumers consuming consumption contain container
containers contains continuous continuously contribute contributes correct corresponding could could's
couldnt count countless couple coworker cpu's crap crazy creep creeping critical criticality cron crying cto
culprit culprits curious current currently curve customer customers daily damn dangerous darn dashboard
dashboards data database databases datacenter day days db dc dear debian debug debugging december deep
deeper default defunct delay delayed delays delete's deleted depend deploy deployed deployment descending
describe desk desktop detail details detect detected dev developer developers device devices devour
devouring diagnose diagnostic diagnostics did didnt different dig directly disappear disappeared disaster
discover display distinct dive diverse do docker's does doesnt dog-slow doing done dont dos double
double-check doubt doubtful down downstream downwards dozens drain drained draining drill drilldown driving
dropped drown drowning dubious due dump during dying each earlier earliest early easy effect elderly else
emerge emergency enclosed encounter end ending endpoint endpoints engineer engineers enormous enough entire
enumerate environment environments equivalent especially estate even evening eventually ever every everybody
everybody's everyone everything evidence exact exactly exceeded exceeds except excessive exhaust exhausted
exhaustion exist existing exists expect experience expert explain explode exploded exploding external extra
extranet extremely face fact failover fairly fall falling falls far fast fastest fattest fear february
fedora feel feeling feels fell fellow fetch few field fields figure finally find fine fire fire-drill fired
fires firewall firewalls firing first five flagged flaky fleet flood flooded flooding folks following
footprint for forever form format former formerly found four fraction frankly freaking frequent frequently
fresh friday friend from frontend fuck fucking full fullest fun funny fyi gain gateway gave get gets getting
giant gimme gist give given glance globally glutton gluttons go gobble gobbling goes going gone gonna good
good-for got got'em gotta gotten gradually grafana's graph graphs grateful great greetings grew group
grouped grow growing grown grows grumbling guess guest guilty guy guys guzzle guzzling had half hammer
hammers hand handful handover handshake hanging happen happened happening happens hardly hardware harmful
harmless has have having head headache headless headline headlines heads-up healthcheck healthy heap hear
heaviest heavy heck hell hello help helpdesk hence here hey hi high higher highest hint hints hipaa history
hit hits hitting hmm hold holy home honest honestly hop hope hopefully horrible hosed host hosts hour hourly
hours house how however huge hundreds hypervisor i idea identical identify idiot if im image images imagine
immediately impact impacts important improper in inbound incident include including incomplete incorrect
indicate influence info inform information infra initially insanely inside inspect inspection install
installed instance instances instantly instead interested intermediate intermittent internal into intranet
investigate investigating involve involves irrelevant is isnt iso it it'd its itself ive january java job
jobs json july jump jumped jumps june junior just kb keep keeps kept kernel kicked kicks kind kinda kindly
knock knocking know kubernetes lab lapse lapsed lapses laptop last late lately later latest layout lead
leads learn least leave leaving left legacy lemme lengthy less let lets level lie lies like likely line
linux list listed listing literally little live lives load loads local lol long longer longest look looked
looking looks lookup lose lost lot lots lousy low lower lowest lunch lying machine machines macro mad
madness main major make man managed manager manager's many marginal markdown massive master mate matter
matters max maximum may maybe mb me mean meanwhile measure medium mention mentioned mentions mess metal
metric metrics middle might mighty min mind mine mini minimum minor minute minutes missing moan moaning
moderate modern moment monday monitor monitoring monster monsters month monthly months mood more morning
most mostly moved moving much multiple must my myself mysterious mystery nagios name named names nasty near
nearly need needed needs negligible neighbors neighbour neighbours never new newbie newest newly next nice
night nightly nightmare no nobody nobody's node nodes none noon nope normal normally not nothing notice
noticeably noticed notify notorious november now nowadays number numbers numerous observe observed obtain
obvious obviously occasionally occur occurred occurring october odd of off offender offenders offending
office often oh ok okay okey old oldest on oncall once one ones only onto onward onwards op openssl
operating operations operator operators opposite ops or order ordered originally orphan orphaned os other
others ought our ours ourselves out outbound outline output over overall overnight overview own owned pack
pager pain pair panel part partial particular partly parts past pb pci peak peaks peek people per percent
percentage perhaps periodic periodically perl permanent permanently person php physical pig pigs pile piled
piles piling ping'd pipeline place plain please pls plus plz pod pods point poor pop popped popping pops
portal portion possible possibly postmortem potential preceding prepare present presently presume pretty
previous primary print prior private probably problematic process processes prod prod's production
production's program programs pronto proper properly proportion provide proxy proxy's public pull put
puzzling python quantity quarterly question quick quick-check quickest quickly quiet quite rack raise random
randomly range rank ranked ranking rapidly rarely rate rather ratio reach reached reaching react reacts read
readout ready real realize really reason receive recent recently reckon recognise recognize record records
recovered red refer refers regarding regards region relate related relates release releases relevant
remained remaining remember remote replica replies reply report reported reporting reports reside resides
respectfully respective respond responds responsible rest result results reverse reviewer rhel ridiculously
right rightly rise rises rising risky ro rocket rogue roof rookie room root's rose rough roughly row rows
ruby rule rules run rundown running rw safe said same sanity sanity-check sat saturday saw say saying says
scan scarcely schedule scoop score screaming screenshot script scripts second secondary see seeing seem
seems seen seldom self-signed senior september sequence serious seriously server servers service setting
settings several severity shady shall shape share she shift shit shop shops short shorter shortest should
shouting show showing shrink shrinking shrinks side sign significant silent silently similar simple simply
since sincerely single sit site sites sits sitting situation six sketch sketchy skyrocket skyrocketing slave
slightly slowly sluggishly small smaller smallest smart snapshot so soc2 software some somebody somehow
someone something sometimes somewhat somewhere soon sorry sort sorted sox spam spamming spams specific
spiking spontaneously sporadic spot sprint stable stack stage staging staging's stand standby standing
standpoint stands start starting starved state statistics stats status stay stayed steady step still stopped
store story-of strange stray stretch struggling stuff stupid subsequent substantial succeed succeeded
succeeds success successful such sucks sudden suddenly suffer suffering sum summarise summarize summary
summary-level sunday super supervisor supplier support suppose supposed sure suspect suspected suspects
swallow swallowing sweep swell sysadmin system systems ta table tables take taken taking talk tank tanked
tanking team teammate technician tell telling tells temporarily temporary ten tenant tenants tense terminal
terrible terribly test tested text than thank thanks that thats the their them themselves then there theres
these they thing things think thinking third-party this thorough those thousands three threshold through
throughout thursday thx ticket tickets tight till time times tiny to toast toasted today together told
tomorrow ton tonight tons too top total totally totals toward towards town track tree tremendous triage
trigger triggered triple trouble troubles troubleshoot troubleshooting troubling try trying tuesday turn two
type typical ubuntu ugly uh um under underneath understand unexpectedly unexplained unique unless unstable
unsuccessful until unusual unusually up upcoming upon upstream upwards urgent us used useful user users
using usual usually utc valid validity vanish vanished various vendor verbose verify version very via victim
victims view virtual visible visibly vm vms volume-wise vps vs want wants warn warns was wasnt watch way we
web webserver website websites wednesday week weekday weekdays weekend weekly weeks weird weirdly well went
were what whatever whats whats'up whatsoever when whenever where wherever whether which whichever while
whilst whining who whole whom whos whose why wildcard will wise wish with within without witness wonder
wondering wont word work works worried worry worse worst worth would wouldnt wrong wrongly wtf www yeah year
yearly years yelling yells yep yes yesterday yet yo you your yours yourself zabbix zombie zombies zone
    """
)
"""Words that say nothing about the topic: a chatty prompt is still about the words that remain."""

CHANGE_VERBS = words(
    """
accelerate ack acknowledge activate adapt add adjust agree alert allocate allow allowlist apply appoint
archive assign assume attach autoremove backup bake ban beef blacklist block blocklist book boost bounce
bring build bump buy calculate call cancel cap change chmod chown cleanup clear clone close commit compare
compile compose compress conclude configure confine connect convert cook copy cordon count-down cp create
curb cut dance dd deactivate decommission decrease decrypt defer define defrag defragment delete demote deny
deploy design destroy detach disable disallow disconnect dismiss double downgrade download draft drain draw
drop edit eject empty enable encrypt end enforce enlarge ensure erase escalate evict exec execute expand
expose extend extract fail2ban fix flash flush fly forbid force format forward fsck generate grant grow halt
halve harden hibernate hide hire hold imagine import improve increase initialize insert install invent
invite invoke isolate issue jail join joke kick kill label launch learn lengthen limit lock logout lower
make mark marry mask migrate mkdir mkfs modify mount move mute mv notify nuke open optimise optimize order
overwrite page paint paraphrase partition patch pause permit pin play postpone preserve pretend prevent
proceed program prolong promote proofread protect provision prune purchase purge put quarantine raise
rearrange reassign rebalance rebind reboot rebuild recite reclaim recommend recompile reconfigure recover
recreate redeploy redirect reduce refresh register reimage reinitialize reinstall reissue rekey relabel
release reload relocate remind remount remove rename renew renice renumber reopen reorder repair replace
replicate reprioritize reprovision reroute rerun reschedule reset reshape resize respawn restart restore
restrict resume retry revert revoke rewind rewire rewrite rm rmdir roleplay rollback rotate sandbox sanitize
scale schedule seal secure segregate sell send set setup shorten shred shrink shutdown sign silence simplify
simulate sing sleep snooze solve spawn speak speed spell start stop streamline submit subscribe suggest
suspend swapoff swapon switch sync tag teach terminate throttle tidy toggle touch translate trim truncate
tune turn tweak type umount unban unbind unblock uncomment undeploy undo unhide uninstall unlink unlock
unmask unmount unpin unplug unset unsubscribe untag unzip update upgrade upload use vacuum whitelist whiten
wipe write zap zip
    """
)
"""In the place of a command these ask for something that no runbook does."""

VERB_NOUNS = words(
    """
attempt attempts available check config count daemon error errors event events failed fails failure failures
history info issue issues level list log logs message messages necessary needed outstanding pending points
problem problems process reason reasons report required requirement schedule service space state statistics
stats status time times usage
"""
)
"""After one of these nouns a change verb is no command: `reboot history`, `update status`."""

UNITS = words(
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
"""Names of services that are units when they stand alone; others need `service`, a suffix or other words."""

GROUPS = {
    "<machine>": words(
        "machine box server host vm node computer system instance pc thing workstation laptop vps"
    ),
    "<eat>": words(
        "eat eats eating ate eaten use uses using used take takes taking took taken hog hogs hogging hogged "
        "consume consumes consuming consumed burn burns burning chew chews chewing gobble gobbles gobbling "
        "devour devours devouring swallow swallows swallowing guzzle guzzles guzzling occupy occupies "
        "occupying suck sucks sucking grab grabs grabbing claim claims claiming waste wastes wasting need "
        "needs gobbled sucked drain drains draining steal steals stealing utilize utilizes utilizing "
        "allocate allocates allocating allocated holds"
    ),
    "<somebody>": words(
        "somebody someone anybody anyone nobody who everyone everybody people person guy he she they user "
        "users admin colleague intern contractor"
    ),
}
"""A word counts as itself and as its group; phrases of skills may name the group."""
