"""Lists of words that people say, and the words for them in tool descriptions.

Each line has the words that people say, a colon, and their possible meanings. A meaning counts less than the
word itself (`index`). The lists hold general words of administration, no function names and no whole prompts.
"""

from __future__ import annotations

from lightagentd.agents.tool_choice.stems import SERVICES, stem

_LINES = """
abort abandon: cancel stop end
about: info explain
active running alive loaded: state status
address ip mac: interface address
append add put insert: write create edit
approval confirm confirmation: plan ask propose
archive: backup
attribute attributes: property properties
autostart startup: enable boot
base64 base32 base58 base16 hex hexadecimal: encode decode encoding
bill: invoice
big bigger biggest large larger largest huge heavy: size most space usage
binding bind listen listening eaddrinuse occupied taken: listening port socket connection
bond vlan: interface network
boot reboot rebooted uptime startup: boot
bounce bounced: restart
bring: start
broken crashed dead down failing failed failure: failed state status
browse download fetch curl wget: get url web
card nic adapter: device interface network pci
cat type display: read show
cert certs: certificate
change changed modify modified alter adjust: edit change write
changed modified touched: time stat
checksum hash digest md5 md5sum sha sha1 sha256sum sha512 fingerprint: sha256 digest
children childs parent parents descendants: tree process
clear plain: decode text
code command shell script execute exec cmd oneliner: command bash exec run
comment uncomment: edit replace
compute calculate: make
config configuration settings: configuration file
configured: configuration
console terminal: bash shell
containers: container
conversation: session
cpu load busy slow: cpu process
create make new generate: create make
cron: timer
cut rest remainder truncated: output long part
daemon daemons: unit service
default gateway: route routes
definition: unit file text
delete remove erase rm unlink trash drop: delete
depend depends dependency dependencies need needs require requires: dependencies need
details: info show
device devices hardware: device udev
die died killed crash crashed: failed log
directory directories dir folder folders: folder path
disk disks drive drives hdd ssd nvme harddisk storage: disk block device
dns nameserver hostname domain lookup mx txt ptr ns: resolve name address
e-mail email mails: mail
eat eats eating hog hogs hogging wild consume consumes consuming uses using: use process sort
edit edited: edit
ended finish finished terminate terminated: end stop
encrypt cipher: key crypto
entries: list entry
env environment variables: environment
error errors warning warnings critical: error priority log
establish established: connection state
event events: event
exist exists: stat list
expire expires expired expiry expiration valid validity: validity certificate
explain describe details: explain show
fail fails: failed log status
filesystem filesystems fs ext4 xfs btrfs mount mounted mounts partition partitions: filesystem block mount
fill filled filling full space gigabyte gigabytes gb usage du: space usage disk size
find locate search: find search
firewall: rule
followed: watch
forget forgotten: forget
freeze frozen hang hanging hung stuck: process state
get: get show
gone run: validity end
gpu graphics nvidia amd vga: pci device
grep contain contains containing occurs occurrence match: grep match text line
group owner owns owned permission permissions rights chmod chown mode: owner mode stat
handle handles: handle
hardware: device pci usb
health healthcheck: status
host machine server box computer node: host system machine
http https website site webpage page url link rest api: url web get
image iso: file
inside contents content: list read
install installed: package
invoke: call method
journal syslog logs logged logging journalctl messages: journal log entry
json payload: body post
kernel dmesg: kernel journal
key keys keypair: key pair
kill killed: signal process end
know knows: remember recall
leave leftover: list
library: file
lines tail head: lines log read
link links: path
listener listeners: listening port connection
load: load cpu
log logs: log journal
login logged logon ssh: journal log user
loss lost dropped drops: loss counters packets
lookup: look resolve
made: create
mail mailserver: mx mail
mask unmask: enable disable
mem memory ram oom swap: memory process
method methods function: method introspect
monitor observe track tail follow: watch monitor
mount: mount block
network networking lan wifi wlan ethernet: network interface
note notes jot: remember memory keep
notify: event watch watches
off shutdown shut kill: stop
on: start
open opened opening: open file read
packets packet: packets counters
password secret token: key secret
path: path file
pattern wildcard glob called named: pattern name
pci: pci device
permanent boot: enable
person: ask
pid pids: process pid
ping reach reachable reachability latency online: ping host echo
plug plugged plugging unplug connected inserted attached recognized: usb device
port ports: port listening connection
priority severity: priority
proc process processes program programs task tasks application app: process
proposal propose: plan propose
push upload submit send: send post
query: search query
question: ask question
read reread: read
reload reread rereads: reload again configuration
remember memorize told: remember recall memory kept
rename: move name
replace swap substitute set: replace edit
request requests: get url
response: body answer
restore revert rollback undone undo back: undo
roll: undo
route routed routing: route
said: recall kept
save store: write keep
scan: list
schedule scheduled timers timer: timer unit
see: show
sent serves sends: show
service services: unit service
settings: configuration
shell: bash
sign signature signatures signed signing: sign signature key
sighup sigterm sigkill hup term: signal process
since yesterday today tonight hour hours minutes night morning evening week month: since time until
skills runbook runbooks playbook: skill
socket sockets: socket connection
sound audio input keyboard mouse: device subsystem
speed mtu: speed interface
ssl tls https x509: tls certificate
start started starting launch: start
stick thumbdrive dongle: usb device
stop stopped halt: stop
structure: tree
subscribe: watch
subject issuer issued issuer ca san: issuer certificate
tcp udp: socket connection
test: check
thinking mind: plan
throw purge: delete remove
time when: time
top: sort cpu process memory
traffic bandwidth: counters interface
troubleshoot diagnose: status log
turn switch: start stop
unpack: decode
up: status state
verify valid check authenticity: verify check
version: info
watched watching watches: watch
webhook hook callback: post url
website: url web
what's which: list show
where: path find
who whose: owner user process
wrong: error
zombie zombies defunct: state process
k8s kube kubectl: kubernetes
rain sunny temperature snow: weather forecast
meeting appointment: event calendar
picture photo: image
vm guest: virtual machine domain
ticket: ticket issue
chat: message channel
commit committed: commit
lsusb: usb device list
lsblk blkid fdisk: block device list
lspci: pci device list
df: space disk usage block
free vmstat: memory process list
ps htop top: process list
pgrep pidof: process list name
pstree: process tree
pkill killall: signal process
ss netstat lsof: socket connection listening process
ifconfig: interface network address
ip: interface address network
traceroute mtr: route ping
dig nslookup host: resolve name address
systemctl: systemd unit
journalctl: journal
dmesg: kernel journal message
ls: list folder
less more: read file
chmod chown stat: mode owner stat
tee echo: write
sed: edit replace
openssl: certificate crypto
gpg: signature sign verify
busctl gdbus: dbus bus
udevadm: udev device
inotifywait: watch
since: time boots
boot reboot rebooted uptime restarted: boots boot
mention mentioned said say told tell: recall memory kept
sudo su passwd pam: journal log
oom: journal kernel memory log
ending extension suffix: pattern glob find
exist exists there present: stat find list
overwrite overwritten: write
eye: watch
nameserver: resolve name
resolution resolver: resolve name
room: space usage
slow sluggish laggy lag overload overloaded performance unresponsive throttled: cpu process sort
leak leaking swapping: memory process
quota inode inodes capacity: usage space
expose exposed: listening port
exception traceback segfault oops stacktrace severe fatal incident suspicious alert: journal log error
authentication auth attempt attempts attack brute intruder hacker hacked signin session: journal log
cable link carrier duplex wireless offline: interface network state
panic outage power unexpectedly: boots journal
renew renewal outdated due lapse lapsed: validity certificate
flapping crashloop crashes crashing: status log restart
holds hold holding uses used using: process connection file
restarting recycle: restart
launch boots: start
halt suspend kill quit: stop
permanently automatically auto: enable boot
depending ordering: dependencies
rows row: table
tidy clean cleanup: delete
new newly arrive arrives arrived created appear appears: watch create
amend correct fix adapt tweak: edit
paste output text string: text
read print view open: read
owned belongs belong: owner user
older newer age date: time stat
existing: stat list
bytes byte kb mb tb: size
encoded encoding decoded: encode decode
plaintext readable: decode text
authentic genuine tampered intact unbroken integrity: verify sha256 compare
compare matches same identical: compare sha256
trusted trust chain handshake: certificate trust
hci0 bluetooth bluez upower logind: dbus unit
serial vendor model driver module: device driver model
attached connected detected recognised recognized seen hotplug: device usb
printer scanner camera webcam: device usb
nic ethernet: interface network pci
reachable respond responds responding answers alive: ping status
redirect header headers statuscode endpoint: url get
asked question opinion decision decide choose unsure doubt: ask person question
steps step roadmap approach proposal: plan task
progress far: plan show
wish preference preferences always: remember
recollect recollection notes: recall
howto instructions procedure guide manual: skill load
ability abilities capable: skill list
email inbox: mail
webserver fileserver mailserver dbserver: unit service
offline: stop
downtime: reload
load: reload read
cancel: undo stop
secret: hmac key
forgot forgotten: recall
crond sysv lsb: unit service
again: restart
wants pulled pulls order: dependencies
digital: sign signature crypto
customer bill: invoice
procedure routine: skill run
moment now: list status
filter filters: field query
sum: usage size
filling fills: usage size folder
mentions mention: grep text
dir: list folder
nine ten monday friday: reminder event
ipv4 ipv6: address interface
enotfound getaddrinfo nxdomain servfail: resolve name
alert alarm: watch event
raise lower increase decrease: edit replace
occupy occupies: port connection process
definition defined: unit file cat
liner awk perl python: command
mtu duplex: interface network
gateway 502 503 504: url get
econnrefused refused reset: connection log port
enoent eacces eperm: stat owner mode
enospc: usage space
threads: process info
rights acl: mode owner stat
sum total: usage size
activate: enable start
deactivate: disable stop
going: start
grow grows grew grown growing: usage size
talk talks talking speak speaks: connection socket
notice inform: watch
journalctl: journal log
generate compose author: create make write
create make new: write
turn set adjust: edit replace
keyed: hmac
began begun begin: start
runs ran running: process status
wrong faulty: error log
yes no: replace
hung hang hangs hanging: process signal
identical original: sha256 compare
typo: edit
fresh: restart generate
display: read show
uuid label: filesystem block
noted notes note: memory
kick respawn relaunch: restart
server servers: service unit host
connected connection connections remote peer peers: connection socket
remind: reminder
overridden override overrides dropin: unit drop
autostarts: enable boot
leases lease: lease
type enter: command run
permit denied refused: log error
loud hot burn burns: cpu process
occurs occur: field value
gracefully: signal stop
setuid suid: mode stat
symmetric: key generate
export: public
webcam: usb
continue: output read
docs document: document
outdated stale: time
dump: backup export
"""
_PHRASES = """
run out: validity certificate
runs out: validity certificate
log in: journal log
logs in: journal log
logged in: journal log
shut down: stop
shut off: stop
turn off: stop disable
turn on: start enable
switch off: stop disable
switch on: start enable
bring up: start
bring back: start
come up: start boot enable
comes up: start boot enable
how big: size stat usage
how large: size stat usage
how old: time stat
how much: usage size
how many: list
look up: resolve
plug in: usb device
plugged in: usb device
take back: undo
put back: undo
roll back: undo
go back: undo
clean up: delete
get rid: delete
free up: usage space
use up: usage space
uses up: usage space
at boot: enable boot
on boot: enable boot
after boot: enable boot
file system: filesystem block
hard disk: disk block
hard drive: disk block
note down: remember
write down: remember
keep mind: remember
in mind: remember
open port: listening port
open ports: listening port
key pair: keypair pair generate
unit file: cat unit
since when: time boots
up since: boots boot
find out: show
up running: status state
no more: stop disable
fire up: start
with me: ask person
ask me: ask person
me first: ask person
me know: watch event
let know: watch event
belongs to: address owner
written in: read file
any more: stop disable
do not: disable stop
must not: disable stop
should not: disable stop
not start: disable stop
not load: disable stop
failed password: journal log
invalid user: journal log
wrong password: journal log
broke in: journal log
how often: journal query boots
till when: validity certificate
until when: validity certificate
how long: validity time
go wrong: journal log error
went wrong: journal log error
by itself: enable boot
start with: enable boot
starts with: enable boot
it up: start
comes back: start enable
came back: boots
not known: resolve name
not found: stat list
last edit: undo
last change: undo
every change: watch
each change: watch
any change: watch event
from now: watch remember
not forget: remember
never forget: remember
i gave: recall memory
i told: recall memory
i said: recall memory
i mentioned: recall memory
told you: recall memory
take offline: stop
without downtime: reload
power on: enable boot
disk space: usage size
disk usage: usage size
free space: usage size
space left: usage size
"""
"""Two words that stand together, in the same way."""


def _split(lines: str) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in lines.strip().splitlines()]


def _table() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    spoken = [(said.split(), meant) for said, _, meant in _split(_LINES)]
    spoken += [([" ".join(map(stem, said.split()))], meant) for said, _, meant in _split(_PHRASES)]
    for said, meant in spoken:
        for word in said:
            known = word if " " in word else stem(word)
            terms = found.setdefault(known, {})
            terms.update(dict.fromkeys(stem(other) for other in meant.split() if stem(other) != known))
    for name in sorted(SERVICES):
        found.setdefault(stem(name), {}).update(dict.fromkeys(("unit", stem("service"))))
    return {word: tuple(terms) for word, terms in found.items() if terms}


MEANT = _table()
"""By the stem of what is said: the stems of what may be meant."""
