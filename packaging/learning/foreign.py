"""Makes prompts that no skill answers: requests for a change, how-to questions and definitions.

They stand beside those of `skills/none.txt` when weights are learned, so that a verb is known with nouns with
which nobody wrote it down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from .examples import NONE, Example


def _split(text: str, mark: str | None = None) -> list[str]:
    return text.split(mark)


_VERBS = _split(
    """
    restart reboot stop start kill delete remove install uninstall upgrade update disable enable reload
    fix create add edit modify change configure reconfigure drop purge renew rotate block unblock ban
    unban mount unmount umount format resize extend expand grow shrink clear clean flush reset rename move
    copy deploy redeploy rollback terminate mask unmask apply grant revoke lock unlock rebuild repair
    replace restore reinstall downgrade pin schedule cancel free reclaim reduce lower raise increase
    decrease limit allow deny permit open close bounce recycle wipe erase encrypt compress archive vacuum
    truncate trim prune empty dump export import migrate convert clone sync push pull register renice
    suspend resume pause freeze unfreeze attach detach connect disconnect assign set unset tune optimize
    speed harden secure activate deactivate shutdown power eject swap scale drain evict failover promote
    demote bind unbind expose forward redirect route whitelist blacklist allowlist quarantine isolate sign
    revert undo rewrite overwrite append insert upload download patch hotfix build compile make run
    execute launch initialize provision bootstrap bring
"""
)
_THINGS = _split(
    """
    the|disk the|root|partition the|home|partition /var/log /etc/fstab /srv/data nginx postgres docker
    redis.service the|web|server the|database the|service|backup all|failed|units the|timer cron
    the|cron|job the|server this|machine the|kernel the|logs old|logs the|journal syslog swap memory
    the|cache the|process pid|4242 port|8080 port|443 the|firewall eth0 the|network|interface the|gateway
    the|dns|server /etc/resolv.conf the|hostname the|certificate|for|shop.example.org the|certs ssh
    the|ssh|key user|bob alice root's|password the|group|sudo all|packages openssl the|package|lists
    security|updates the|container|web every|container the|raid|array /dev/sdb the|lvm|volume
    the|filesystem the|nfs|mount the|backup last|night's|backup the|clock the|timezone
    the|permissions|of|/etc/shadow the|limits conntrack inodes the|load the|vm the|bios the|queue it them
    everything
"""
)
_ORDERS = (
    "{verb} {thing}",
    "please {verb} {thing}",
    "can you {verb} {thing}",
    "{verb} {thing} now",
    "how do i {verb} {thing}",
    "could you {verb} {thing} for me?",
    "how to {verb} {thing}",
    "i want you to {verb} {thing}",
    "check {thing} and {verb} it",
    "what is the best way to {verb} {thing}?",
    "we need to {verb} {thing}",
    "go ahead and {verb} {thing}",
)
_ABROAD = _split(
    "starte {} neu|stoppe {}|lösche {}|bitte {} neu starten|installiere {}|entferne {}|"
    "kannst du {} aktualisieren|wie kann ich {} einrichten|deaktiviere {}|erstelle {}|ändere {}|"
    "redémarre {}|arrête {}|supprime {}|installe {}|peux-tu redémarrer {}|mets à jour {}|"
    "comment configurer {}|désactive {}|crée {}|reinicia {}|detén {}|borra {}|instala {}|elimina {}|"
    "actualiza {}|cómo configuro {}|puedes reiniciar {}|crea {}|reinicie {}|pare {}|apague {}|"
    "instale {}|remova {}|atualize {}|como configurar {}|pode reiniciar {}|crie {}|herstart {}|"
    "verwijder {}|riavvia {}|elimina {}|installa {}|zrestartuj {}|usuń {}",
    "|",
)
_NOUNS = _split(
    """
    disk ssd inode filesystem partition raid lvm memory swap ram oom-killer cpu load kernel kernel-panic
    process zombie daemon thread systemd service unit timer cron journal log journald syslog port socket
    tcp udp firewall nftables iptables network router dns resolver hostname ip-address gateway mtu vpn
    certificate tls ssl ssh sudo root user group password permission suid acl package apt update container
    docker podman kubernetes image volume database postgres mysql redis nginx apache proxy load-balancer
    backup snapshot restic ntp chrony timezone boot grub uefi initramfs virtualization hypervisor server
    cloud mount nfs bind-mount fstab tmpfs file-descriptor inotify conntrack limit cgroup
"""
)
_TALK = _split(
    "what is a {0}|what's {0}|explain {0}|explain how {0} works|difference between {0} and {1}|"
    "what does {0} mean|{0} vs {1}|{0} tutorial|write a script that checks {0}|"
    "write an ansible playbook for {0}|best {0} for gaming|why do people use {0}|who invented {0}|"
    "a poem about {0}|tell me a joke about {0}|how does {0} work|which {0} should i buy|"
    "cheap {0} deals|learn {0}|what is the history of {0}|is {0} better than {1}|teach me {0}|"
    "give me an example of {0}|a book about {0}|define {0}|what are the benefits of {0}|"
    "translate {0} into french|draw a {0}|was ist {0}|erkläre {0}|qu'est-ce que {0}|explique {0}|"
    "qué es {0}|explica {0}|o que é {0}|how do i learn {0}|what are the advantages of {0} over {1}|"
    "{0} for beginners|recommend a {0}|write documentation about {0}|{0} price|"
    "should we use {0} or {1}|{0} meaning|jobs in {0}",
    "|",
)


def made_up() -> list[Example]:
    """The prompts, each once, in the same order each time."""
    texts = [*_orders(_VERBS, _ORDERS, 5), *_foreign(), *_talk()]
    return [Example(skill=NONE, text=text) for text in dict.fromkeys(texts)]


def _orders(verbs: Sequence[str], shapes: Sequence[str], each: int) -> Iterator[str]:
    turn = count()
    for verb in verbs:
        for _ in range(each):
            at = next(turn)
            thing = _THINGS[at * 7 % len(_THINGS)].replace("|", " ")
            shape = shapes[0] if at % 2 else shapes[at // 2 % len(shapes)]
            yield shape.format(verb=verb, thing=thing)


def _foreign() -> Iterator[str]:
    things = [thing.replace("|", " ") for thing in _THINGS if "the|" not in thing]
    for at, shape in enumerate(_ABROAD):
        for step in range(3):
            yield shape.format(things[(at * 5 + step * 11) % len(things)])


def _talk() -> Iterator[str]:
    nouns = [noun.replace("-", " ") for noun in _NOUNS]
    for at, shape in enumerate(_TALK):
        for step in range(8):
            one = (at * 13 + step * 17) % len(nouns)
            yield shape.format(nouns[one], nouns[(one + 29) % len(nouns)])
