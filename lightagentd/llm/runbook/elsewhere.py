"""Subjects that no runbook answers: other subjects, other languages, and facts of the machine for another
tool.

Also the opposite: `ANCHORS`, words that hardly anybody but an administrator uses. Next to one of them an
unknown word is taken for detail; without one it makes a homonym such as `load` doubtful.
"""

from __future__ import annotations

from lightagentd.llm.runbook.vocabulary import words

OFF_TOPIC = words(
    """
intellij vscode eclipse pycharm xcode webpack
actor actress africa airport album alexa alien aliens america android animal animals anxiety apple apples
author baby band basketball batman beach bed beer berlin bible bicycle bike birth birthday boat book books
boyfriend brain breakfast burger bus buy cabin cake camp capital car cardio career cars cats celebrity ceo
cheap cheese chess childhood chinese chocolate cinema college concert cook corn cost costs course
cricket cruise css death definition degree deposit diet difference dinner dinosaur discount dishes disney
divorce dj dogecoin dogs dream dreams dress driver's edible election emacs essay ethereum europe exam
excel exercise facebook fashion film fish fishing flight flights flower flowers foam football fortnite
founder founders france fridge game gamer games gaming germany ghost gift girlfriend gmail god golang golf
greeting gym haiku hamburg hamburger happy-birthday harbor harbour haskell hire hiring history-of
hockey homework horoscope html husband instagram interview invented inventor invest ipad iphone italian
italy japanese javascript jockey joke jokes kettle kids king language lawyer leather lesson license limerick
linkedin loan london love lyrics marketing marriage marry mars marvel match mattress meaning medicine
meditation minecraft minister moon mortgage mountain movie movies museum music nano navy netflix nintendo
novel novels orange outlook painting paris passport philosophy pizza planet playstation podcast podcasts
poem poems poet poetry pokemon poker politics powerpoint president psychology queen recipe recipes recommend
recommendation record-label regex religion restaurant restaurants resume riddle river rotterdam rugby rust
salary sandwich santa sea ship ships shirt shoes singer siri skateboard smartphone soccer song songs soup
spain spanish sport sports spotify stars stock stocks stories story sun swim tablet taxi tea team's tennis
theater theatre therapy thesis ticket-price tiktok timber tokyo train trains tree trees trivia trousers
truck tutorial twitter typescript versus vim vinyl visa war weather wedding whatsapp wife wine workout xbox
yoga youtube
"""
)
"""One of these and the prompt is about something else."""

FOREIGN = words(
    """
affiche auf avec bedankt bitte bonjour che ciao combien como cual cuanta cuanto cuantos czy danke dans della
dello dem dienst disque dlaczego donde dysk een eine einen einer espace espacio esta estan festplatte geen
geheugen gestern gibt gracias grazie guten hallo het heute hoe hoeveel hola hur ich kak kann kannst kaputt
laeuft langsam las les loesche mein meine memoire memoria merci mir montre morgen mostra mostre muestra
mycket naar neustart nicht nie niet noch notre obrigado oder onde perche platz pochemu pokaz por porque
pourquoi privet qual quanta quanto quel quelle quelles quels questo qui redemarre reinicia reinicie riavvia
salut schijf schon serveur servidor sind sono spazio speicher starte toon uma una und une uns unser unsere
varfor viele vilken voll waarom warum welche welcher welches welke wer werden wie wir wird wurde zeig zeige
zijn
"""
)
"""Frequent words of other languages that are no English words: one is enough to pass the prompt over."""

ANCHORS = words(
    """
acme apache apt authentication bind bootup btmp cert certbot certificate chmod cli config coredump cpu cron
cve daemon database datacenter db debian deploy df dhcp directory disk diskspace dmesg dmz dnf dns docker du
enospc ethernet failover fedora filesystem filesystems firewall folder fs fsck fstab fuser gateway grub hdd
hostname htop http https hypervisor inode iowait ip iptables ipv4 ipv6 java journalctl journald kubernetes
kvm lastb ldap letsencrypt linux listener loadavg localhost logon loopback lsof lvm machine mariadb mem
meminfo memleak mountpoint mtu mysql netstat nfs nginx nic nvme oom oomkilled openssl pem php pid ping pkg
postgres proc prod psi python raid ram reboot repo resolv resolver rhel rootfs rpm rss segfault server
socket ssd ssh sshd ssl stacktrace staging sudo sudoer switchport sysadmin syslog systemctl systemd tcp tls
traceback traceroute ubuntu udp uid umount unmount upgradable uplink uptime userspace utmp vlan vm vmstat
vpn vps webserver wtmp x509 yum zabbix zypper
"""
)
"""Words, as people write them, whose company makes an unknown word a detail."""

HOMONYMS = words(
    """
account address admin bash boot box cache connection container core crash device error exception expire free
freeze full host inbound interface internet job journal kernel kill lan latency listen load lock log login
lookup memory message mount network node outage package packet page partition password patch pool port
process processor restart root route router security segment service session shell slow socket space startup
storage swap system thread top unit update upgrade usage user volume warning worker
"""
)
"""The same for two of these together; one alone may be about something else."""

ELSEWHERE = {
    7: """
<unit> config, <unit> configuration, <unit> container, <unit> version, acl <path>, alias, ansible, apache
config, api key, apparmor, architecture, arp table, asset tag, authorize key, azure, backup status, bash
history, battery, bios, bmc, boot loader config, btrfs, cargo, celsius, checksum, clock speed, clock sync,
cloudwatch, cluster health, cluster node, coffee machine, command history, compile error, config <unit>,
config file, config test, configmap, container list, container log, container run, container status, core
count, cpu architecture, cpu count, cpu model, cron entry, cron job, cron table, cronjob, crontab,
daemonset, database size, database user, ddr4, debian version, default editor, default shell, default
target, device name, disk model, distro version, dmidecode, dns record, docker build, docker compose, docker
container, docker event, docker exec, docker history, docker info, docker inspect, docker ps, docker pull,
docker push, docker run, docker secret, docker service, docker stack, docker stats, docker swarm, docker
system, document root, domain register, dpkg <flag>, drive health, ec2, env var, environment, environment
variable, etc host, etc passwd, fan speed, file system type, filesystem type, fingerprint, firewall active,
firewall config, firewall enable, firewall rule, firewall status, firewalld zone, firmware version, fqdn,
frequency, fs type, fstab, git branch, git log, git status, go build, go test, go version, gpu, gradle,
graphic card, grub config, hardware clock, hardware model, hdd health, helm, hold record, host key, hostname
<machine>, how hot, iam role, idrac, ilo, import error, install package, inventory, ipmi, iptables, java
version, jenkins job, k8s, kafka topic, kernel parameter, kernel version run, keyboard layout, kubectl,
kubernetes node, lambda, last backup, ldap user, licence, licence key, license, license key, line in <path>,
list alias, list container, list database, list snapshot, list timer, list virtual machine, list vm, locale,
lsb release, lscpu, lsmod, lspci, lsusb, machine learning, machine name, mail queue, mailq, mainboard,
maintenance window, manufacturer, maven, md5, mdadm, mdstat, memory slot, memory speed, memory type, merge
conflict, mhz, module not found, motherboard, mount option, multipath, mvn, mx record, mysql user, name
<machine>, namespace, network traffic, nfs export, nft, nftables, nginx config, no module, node version,
npm, nproc, ntp server, ntp status, ntp sync, operating system version, os release, os version, own <path>,
owner <path>, package contain, package provide, parse error, partition table, passwd file, path variable,
pci device, permission, permission <path>, persistent volume, phone number, pip, pipeline fail, podman
container, podman ps, power consumption, public key, pull request, python version, rack location, raid, ram
module, ram slot, ram speed, ram type, replica set, replication lag, replication status, request per second,
rpm <flag>, runlevel, runtime error, s3 bucket, samba share, schedule job, schedule task, screen resolution,
screen session, security group, selinux, sensor, serial number, server model, sha256, share export, shell
history, show timer, slot machine, slow query, smart data, smart error, smart health, smart status, smart
test, smart value, smartctl, speed test, speedtest, ssd health, ssh key, sshd config, stack overflow,
statefulset, stop container, subscription, swappiness, swarm, syntax error, sysctl, system clock, table
size, temp, temperature, terraform, thermal, time machine, time server, time zone, timezone, tmux session,
type error, ubuntu version, ufw status, ulimit, umask, uname, unit test, usb device, uuid, vending machine,
version <unit>, version kernel, version number, virsh, virtual host, visitor, warranty, wear level, what
distro, what hostname, what in directory <path>, what kernel, what kernel version, what linux, what model,
what operating system, what os, what time in, what time it, what time on <machine>, what version, when
<path> modify, which debian, which distro, which kernel, which kernel run, which kernel version, which
linux, which operating system, which os, which package own, which release, which ubuntu, which version,
which vm, whois, wifi password, zfs status, zpool
""",
    3: """
read <path> to me, show <path>, what in <path>
""",
    9: """
hard drive health, hard disk health
""",
    5: """
cat <path>, content <path>, docker image, docker network, docker volume, firewall allow, firewall block,
firewall open, hostname, how many core, how many cpu, in firewall, kernel module, list all user, list group,
list package, list process, list user, local user, number core, number cpu, password policy, pod, run
kernel, user list, what group, which container, which group, which package depend
""",
}
"""Weight -> phrases for what another tool would have to answer; a skill needs more evidence than these."""
