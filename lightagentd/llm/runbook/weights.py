"""The weighted words and prompts of the shipped skills, until their examples replace them."""

WORDS: dict[str, dict[int, str]] = {
    "boot-check": {
        6: """boot wrong, boot go wrong, startup go wrong, multi user target, graphical target, default
        target""",
        5: """power failure, lose power, lost power, power fail, on boot, on startup, during startup, slow
        down boot, server restart, box restart, host restart, vm restart, machine go down, server go
        down, box go down, server die, machine die, box die, boot slow, wrong at boot, wrong during
        boot, wrong at startup, wrong during startup, boot time, boot fail, fail at boot, fail during
        boot, slow boot, unclean shutdown, clean shutdown, power loss, kernel panic, how long up, been
        up, boot boot log, startup time, power cut, dirty shutdown, at startup, at boot, during boot,
        last reboot, boot up, since when up, come back up, came back up, power off, boot ok, hard
        reset, last boot, unexpected reboot, slow down startup, delay boot, delay startup, hold up
        boot, slow startup, during start up, how long has <machine>, how long <machine> been, has
        <machine> been run, been run, break sinceboot, break after reboot, broken sinceboot, broken
        reboot sinceboot, fail after reboot, wrong after reboot, been restart, been reboot, been power,
        been shut down, <machine> been restart, boot problem, boot issue, boot trouble""",
        4: """machine off, server off, box off, down <time>, boot, bootup, startup, reboot, uptime, systemd
        analyze, power cycle, up since, machine crash, server crash, box crash, system crash, host
        crash, machine restart, when restart, machine go down, shutdown, last restart, crash last
        night, why restart, start up, previous boot, shut down, last shutdown, power outage, reset
        itself, how long <machine> run, long run, <machine> reboot, <machine> crash, <machine> restart,
        <machine> go down, <machine> die, <machine> off, initrd, initramfs, firmware, userspace, boot
        sequence, boot process, boot order, boot time, time sinceboot, how long sinceboot, sinceboot
        time, reset reason, reboot reason, reboot cause, <machine> come back, wake up""",
        2: """sinceboot, power, outage, blame, clean, come up, came up, up, panic, crash, restart, slow,
        reset, how long, spontaneous, unexpected, critical chain, by itself, loader, sequence,
        breakdown, delay, guilty, hold up, take so long""",
        1: """fail, error, start, last, when, unit, kernel""",
        -2: """<unit>, partition, <path>, login, update, package, disk, filesystem, reboot require, need
        reboot, cert, cpu, memory""",
        -3: """load, load average, loadavg""",
        -4: """<unit>, reboot sinceboot, network, connectivity, internet""",
        -6: """reboot require, need reboot, reboot need, reboot pend, pend reboot, reboot necessary, should
        reboot, require reboot, need restart, need to reboot, have to reboot""",
    },
    "certificate-expiry": {
        5: """certificate expire, cert expire, let encrypt, ssl cert, tls cert, <path> good, how long <path>,
        <path> valid""",
        4: """certfile, cert, certificate, ssl, tls, letsencrypt, certbot, x509, pem, fullchain, acme, cert
        date, date invalid, notafter, notbefore, cert invalid""",
        3: """expire, expiry, expiration, renewal, https""",
        2: """renew, valid, validity, ca, chain, <host>, <path>, run out, outdated, invalid, handshake, due,
        good for, lapse, still good, security warning, warn""",
        1: """soon, day, week, month, left, when, trust, self sign""",
        -2: """password, account, log in""",
        -4: """invalid user, fail password, failed password""",
    },
    "cpu-load": {
        7: """session laggy, ssh lag, ssh slow, ssh laggy, session slow, session lag, session really laggy,
        session freeze""",
        6: """show load, uptime load, <eat> cpu, <eat> processor, <eat> core""",
        5: """load average, high load, cpu usage, cpu load, cpu time, io wait, steal time, wait for io, wait
        on io, runaway process, disk io, io load, <machine> busy, under pressure, <machine> slow,
        <machine> respond, <machine> lag, <machine> hang, <machine> stuck, <machine> freeze, <machine>
        perform, <machine> under, <machine> do, hog <machine>, eat <machine>, choke <machine>, strain
        <machine>, slow <machine>, kill <machine>, top output, processing power, process power, compute
        power, computing power""",
        4: """barely respond, overload, crawl, feel laggy, laggy, busiest, everything hang, everything slow,
        everything stuck, freeze, top <flag>, vmstat, fan spin, machine doing, server doing, box doing,
        host doing, server busy, machine busy, box busy, host busy, machine respond, server respond,
        box respond, cpu, load, loadavg, iowait, slow, sluggish, processor, performance, top process,
        heavy process, busy process, unresponsive, slowness, core, throttle, htop, context switch,
        bottleneck, run hot, how busy, slow down, mpstat, bog down, molasses, treacle, snail, glacial,
        lethargic, response time, slow motion, <machine> chew, <machine> grind, cpu hog, cpu bind, cpu
        bound, io bound, slow response, load average, cpu at, cpu max, shell react, noisy neighbour,
        noisy neighbor, throttled, work hard, hard work, snappy, pegged, system time, run wild, run
        amok, go berserk, out of control, go wild, go crazy""",
        3: """peg, fan, steal, hot, lag, frozen, take age, take forever, take ages, take so long, take long,
        everything take, delay, busy with, pressure, spin, cycle, hypervisor, overcommit""",
        2: """busy, hot, peg, max out, lag, laggy, crawl, spike, steal, hang, freeze, frozen, overload, fan,
        io, idle, top, stuck, spin, runaway, hot process, grind, halt, utilization, saturate, cycle,
        struggle, under stress, heavy, max, maxed, chew, busier, response""",
        1: """process, hog, eat, eat up, burn, consume, usage, use, high, heavy, strain, most, take""",
        -2: """memory, ram, swap, disk space, port""",
        -3: """boot, startup, reboot, bootup""",
    },
    "disk-check": {
        6: """no space, mount above, <path> full or""",
        5: """use on <path>, no space left, out of space, out of disk, read only file, readonly file, space
        left, free space, disk space, how big <path>, how large <path>, size <path>, use space, eat
        space, take space, space go, full <path>, <path> full, large in <path>, big in <path>, space in
        <path>, space on <path>, space under <path>, how many gigabyte, how many gb, how heavy <path>,
        weigh <path>, <path> weigh, <path> size, usage <path>, biggest <path>, go read only, remount
        ro, remount read only, quota exceed, <eat> space, <eat> room, <eat> disk, disk full, gigabyte
        go, gig go, filesystem avail""",
        4: """how full, full disk, disk, diskspace, filesystem, file system, fs, inode, df, partition,
        enospc, storage, rootfs, disk usage, disk full, big file, large file, huge file, mount point,
        use up space, <path> use up, fill up <path>, fill <path>, fill up, hdd, ssd, nvme, lvm, drive,
        read only, quota, gigabyte, fattest, disk <eat>, size on disk, low space, low on space,
        diskfull, volume <quantity>, storage room, store, data sit, much data, save file, write file,
        tmpfs, ext4, xfs, overlay, overlayfs, break down storage, hd, hard drive, hard disk, disk free,
        take <quantity>, <path> take, large <path>, large underneath, <path> big, <path> large, <path>
        huge, big <path>""",
        3: """left on, mount""",
        2: """space, full, volume, mount, du, capacity, quota, gigabyte, gb, tb, biggest, largest, fill,
        room, <path>, huge, readonly, read only, folder, directory, take up, use up, file, heaviest,
        fat, heavy <path>, weigh, avail, gig, worst, put, size, chock, percent, <quantity>, above
        <quantity>, over <quantity>, data, hog, large""",
        1: """eat, eat up, free, hog, usage, how much, grow, grew, headroom, how big, how large""",
        -2: """swap, memory, certificate, cert, port, log in, hold open, open file""",
        -3: """ram, mem""",
    },
    "listening-ports": {
        14: """grep listen""",
        12: """port in use on, which port in use, list port in use, what port in use,
        port use on <machine>""",
        5: """open port, port open, listen port, listen on, attack surface, listen <port>, on port <port>,
        port <port>, expose to, wildcard address, from outside, bound to, reachable from outside,
        reachable from, accessible from, from network, from internet, service reachable, network
        service, service network, bind to""",
        4: """expose <unit>, expose to, <port> open, ss <flag>, port, listen, listener, netstat, open socket,
        tcp port, udp port, bind <port>, on <port>, on all interface, nmap, port scan, offer""",
        3: """expose, socket, ss, service bind""",
        2: """bind, bound, tcp, udp, expose, accept, <port>, server socket, open service, serve, answer on,
        behind, open connection, taken, externally, overview, from internet""",
        1: """open, take, free, network, available, public, outside, service, reachable""",
        -3: """use <port>, hold, in use, use port, occupy, fuser, own port, own <port>, hog, usb""",
        -4: """block, grab, in use, can't bind, cannot bind, couldn't bind""",
        -5: """already take, eaddrinuse, address already, have port, port conflict, <port> conflict, conflict,
        has port""",
        -7: """invalid user, fail password, failed password, from <host>, reach <host>, connect <host>,
        connect to <host>, ping <host>, telnet <host>, reachable <host>""",
        -8: """fuser, publickey, <host> port <port>, accept password""",
        -9: """lsof""",
    },
    "log-errors": {
        5: """error reboot <time>, error boot <time>, error message, error in log, kernel message, kernel
        log, kernel error, log error, error log, ring buffer""",
        4: """break <time>, broke <time>, log, logfile, journal, journalctl, syslog, dmesg, error, err,
        warning, exception, traceback, segfault, go wrong, stack trace, stacktrace, went wrong, kernel
        oops, oops, segmentation fault, journald, event viewer, eventlog, event log, incident, outage
        <time>, stack dump, <unit> report, <unit> say, <unit> write, <unit> print, <unit> output,
        <unit> complain, <unit> tell, <unit> spit, what say <unit>, log line, log message, log entry,
        log output, logbook""",
        3: """logged, varlog""",
        2: """crash <time>, happen, weird, strange, suspicious, critical, alert, message, complain, wrong,
        crit, kernel, <unit>, fault, odd, unusual, noise, problem, abnormal, fishy, anomaly, bad, out
        of ordinary, entry, go on, interesting, issue, complaint""",
        1: """<time>, fail, warn, panic, anything, recent, event, severe, fatal, failure""",
        -2: """boot error, boot log, login, log in, cert, certificate, disk, failed login""",
        -8: """boot log, boot error""",
    },
    "login-audit": {
        6: """invalid user, try to break, accept publickey, accept password, password spray, credential
        stuffing""",
        5: """ssh activity, sshed, who online, who active, who have access, who has access, log in, failed
        login, login attempt, brute force, failed password, who on, break in, broke in, broken in, ssh
        attempt, ssh login, log on, sign in, get in, got in, invalid user, auth failure, uid 0, uid
        zero, use sudo, root login, ssh session, wrong password, login shell, bad password, ssh in,
        guess password, sshed in, who ssh, try password, try to guess, ssh password, intrude, who here,
        who been here, been here, knock on ssh, knock ssh, open session, active session, current
        session, privilege access, privileged access, <somebody> root""",
        4: """anybody else, anyone else, somebody else, someone else, user on, unknown user, strange user,
        unknown account, strange account, login, logon, signin, who logged, bruteforce, wtmp, btmp,
        lastlog, lastb, intruder, intrusion, who was on, hacked, hacker, unauthorized, auth,
        authentication, sudo, sudoer, account, utmp, attacker, who root, faillog, ssh connection,
        become root, <somebody> on <machine>, who on <machine>, guess password, password guess, over
        ssh, via ssh, come in, came in, sudo command""",
        3: """suspicious activity, session, compromised, superuser, hack, whoami, who around, who else, user
        account, knock, hammer, privileged, impersonate, spray, publickey, credential""",
        2: """logged, user, attempt, su, password, ssh, privilege, root access, access, root right, root
        user, attack, last, connected, admin right, connect, force, been on, log out, abuse, misuse""",
        1: """fail, root, shell, suspicious, <time>, currently, logoff, anyone, somebody, who""",
        -3: """expire, root filesystem, memory, disk, cpu, file, port, listen, root partition, network""",
    },
    "memory-check": {
        5: """oom killer, free <flag>, kill by kernel, get kill, process kill, out of memory, memory leak,
        oom kill, run out of memory, low on memory, memory pressure, cannot allocate memory, short of
        ram, short of memory, high memory, lack of memory, <eat> memory, <eat> ram, memory hog, ram
        hog, <somebody> <eat> memory, gig ram, gb ram, enough memory, enough ram, memory left, ram
        left, free show, free say, free print, nothing available""",
        4: """oomkilled, ram full, memory full, swap full, meminfo, memory, mem, ram, swap, oom, oomkiller,
        memleak, rss, thrash, memory usage, hugepage, buff, buffcache, page cache, resident set,
        allocate memory, outofmemory, memory allocation, fork fail, oom kill, oomd, systemd oomd,
        hoard, out of memory error, slab, jvm heap, heap, memory hungry, vmem, virtual memory, commit
        limit, memory overcommit""",
        3: """leak, kill, swapping, how many mb, mb free""",
        2: """footprint, leak, cache, buffer, hungry, pss, page, anon, shmem, kill process, process kill,
        kill my process, who kill, kernel kill, what kill, starvation, starve, shortage, scarce, tight,
        exhaust, overcommit""",
        1: """eat, eat up, hog, consume, use, usage, free, available, left, gb, gig, how much, top, process,
        pressure, most""",
        -2: """disk, card, cpu, disk space""",
    },
    "network-check": {
        5: """connection slow, slow connection, slow network, slow internet, what address, address box,
        address machine, address server, address host, address have, which address, ip address, default
        route, default gateway, packet loss, name resolution, network interface, network connection,
        internet connection, reach <host>, ping <host>, connect to <host>, connect <host>, resolve
        <host>, get to <host>, talk to <host>, dns server, name server, error on nic, error nic, nic
        error, interface error, error on interface, collision, drop on interface, no carrier, carrier
        lost""",
        4: """we connect, nslookup, dig, see <host>, interface, network, networking, internet, connectivity,
        nic, gateway, dns, ping, ethernet, wifi, wlan, route, routing, latency, online, offline,
        nameserver, resolver, reach, reachable, unreachable, lan, uplink, subnet, mtu, dhcp,
        traceroute, resolve name, domain name, ip addr, ipv4, ipv6, <interface>, vlan, resolv conf,
        netplan, mac address, no route, bond, outbound, egress, ipconfig, ifconfig, ip route, ip link,
        tracert, mtr, telnet, temporary failure, no route to host, get through, route to host, could
        not resolve, failure resolve, network unreachable, open website, load website, browse,
        browsing, website load, web page, outside world, icmp, ping loss, arp, switch port, rx error,
        tx error, not found, nxdomain, enotfound, unknown host, host not, service not known, name not
        known, not known""",
        3: """ip, <host>, resolve, net, time out, timed out, connection refuse, connection time out,
        connection timed out, hang, website""",
        2: """connection, connect, link, address, vpn, host name, hostname, slow, connected, outside, outside
        world, lookup, timeout, network card, cable, drop, packet, jitter, bandwidth, web site,
        website, round trip""",
        1: """interface, up, down, alive, work, respond, lookup, answer""",
        -2: """cert, certificate, ssl, tls, port, listen, expire, socket, login, bind, bound""",
    },
    "package-updates": {
        8: """rebootrequired""",
        7: """want reboot, after update reboot, reboot after update, reboot after upgrade, up to date, reboot
        require, need reboot, reboot need, reboot pend, pend reboot, reboot necessary, should reboot,
        require reboot, need restart, need to reboot, have to reboot, restart require, security update,
        kernel update, restart pend, due reboot, reboot outstanding, reboot due""",
        5: """os current, system current, package current, latest kernel, current kernel, latest version, out
        of date, security fix, security patch, new kernel, new version, need update, package update,
        newer version, update available, missing update, security hole, patch level, windows update, be
        due, <machine> current, to install""",
        4: """update, upgrade, upgradable, upgradeable, package, patch, outdated, apt, dnf, yum, zypper,
        pacman, cve, vulnerability, deb, rpm, unpatched, updatable, hotfix, unattended upgrade, pkg,
        pkgs, apt upgrade, reboot after, refresh, package list, latest package, newest""",
        3: """newer, vulnerable, security, behind on""",
        2: """software, repo, repository, stale, pend, held back, hold back, apply, fix, reboot""",
        1: """version, kernel, install, available, new, outstanding, security, wait, latest, current""",
        -2: """log, port, cert, certificate, login, attack""",
        -3: """after update, after upgrade""",
        -8: """after kernel update, after kernel upgrade, since kernel update, since update, since upgrade""",
    },
    "service-triage": {
        4: """anything down, anything broken, anything crash, anything fail, what broken, what down, what
        fail, what crash, everything up, everything run, something broken, something down, database
        run, web server run, mail server run, web server up, web server down, database up, database
        down, database ok, web server ok, mail server up, mail server down, database server run, server
        run, failed service, failed unit, systemctl, happen to <unit>, keep restart, keep crash, keep
        die, core dump, coredump, crash loop, restart loop, not run, service down, service status,
        service state, unit fail, service fail, check service, service ok, service run, service broken,
        run service, down service, dead service, crash service, service dead, service crash, service
        health, broken service, service start, service stop, service up, exit with error code, control
        process exit, main process exit, job for <unit>, result exit code, start request, exit status""",
        3: """<unit>, all service, every service, come back, not come, come online""",
        2: """<unit> crash, unhappy, depend, dependency, dependencies, matter, service, unit, daemon, run,
        up, down, status, state, ok, okay, healthy, health, alive, dead, crash, fail, failure, break,
        broken, broke, start, stop, restart, die, flap, wrong, problem, issue, hang, hung, exit,
        respond, work, active, inactive, trouble, unhealthy, go on, misbehave, degraded, what with,
        fine, loop, systemd, process run, timer, come up, behave, happy, sick, enabled, fall over,
        unwell, green, red, stable, job, function, functional, doing job, operational, available,
        responsive, unresponsive, start up, quit, abort, terminate, exited, activating, deactivating,
        mask, stuck""",
        1: """go down, database, web server, mail server, db, why, kill, dependency, happen, doing, good,
        unable, check""",
        -2: """login, port, listen, certificate, cert, memory, ram, cpu, update, package, patch, boot, log,
        error, disk, ssl, tls, <pid>, warning, journal, socket, upgrade, expire, attempt, reboot, up to
        date, reboot sinceboot""",
        -3: """space""",
    },
    "who-uses": {
        6: """already in use, can't bind, cannot bind, couldn't bind, use port, use <port>, hold port, hold
        <port>, own port, own <port>, use port <port>, occupy port, occupy <port>, lsof, fuser, block
        port, block <port>, hog port, hog <port>, already use, port in use, <port> in use, eaddrinuse,
        address already in use, already take, <port> take, port take, <port> already, grab port, grab
        <port>, claim port, steal port, eat port, sit on port, sit on <port>, squat port, have port,
        have <port>, port conflict, <port> conflict, who else use, has port, has <port>""",
        5: """<pid>, open file, file descriptor, file handle, hold <path>, use <path>, have <path> open,
        <path> open, <path> busy, <path> in use, unmount <path>, umount <path>, lock <path>, target
        busy, device busy, write to <path>, keep <path>, open <path>, access <path>, <path> lock, touch
        <path>, read <path>, write <path>, read from <path>, grab <path>, eject <path>, <eat> port""",
        4: """hold open, keep open, unmount, umount, descriptor, file lock, busy <path>""",
        3: """hold, who in <path>, who under <path>, process in <path>""",
        2: """use, own, lock, <path>, <port>, in use, busy, handle, write, writing, read, grab, steal, handle
        open, access, eject, attach""",
        1: """open, process, who, which process, who use, block, keep, doing, port, busy, hog, program,
        application""",
        -3: """space, size, full, big, large, fill, memory, cpu, listen, cert, certificate, disk, inode, swap,
        log in, sudo, up space, ram, gigabyte, gb, how much, how many gigabyte, room""",
    },
}
PROMPTS: dict[str, tuple[str, ...]] = {
    "boot-check": (
        "what failed at boot",
        "when was the last reboot",
        "why is booting so slow",
        "did the machine crash or was it shut down cleanly",
        "how long has it been up",
    ),
    "certificate-expiry": (
        "which certificates expire soon",
        "check the certificate of example.org",
        "is /etc/nginx/tls/site.pem still valid",
        "when does our ssl cert run out",
        "tls expiry of mail.example.org:993",
    ),
    "cpu-load": (
        "why is the server slow",
        "what is using the cpu",
        "is the load high",
        "show me the top processes",
        "top",
        "why is the load average so high",
    ),
    "disk-check": (
        "check disk",
        "why is the root filesystem full",
        "how much space is left on /var",
        "are we running out of inodes",
        "what takes up the space in /home",
    ),
    "listening-ports": (
        "who is listening on 8080",
        "what ports are open",
        "what is on port 443",
        "list listening sockets",
        "which services are exposed to the network",
    ),
    "log-errors": (
        "any errors since this morning",
        "show me the logs of nginx",
        "what went wrong last night",
        "errors in the last hour",
        "anything suspicious in the journal",
    ),
    "login-audit": (
        "who is logged in",
        "any failed logins since yesterday",
        "who used sudo this week",
        "which accounts can log in",
        "is someone brute forcing ssh",
        "last",
        "w",
    ),
    "memory-check": (
        "what is eating memory",
        "check memory",
        "is the machine swapping",
        "did the oom killer strike",
        "how much ram is free",
    ),
    "network-check": (
        "check the network",
        "is the internet reachable",
        "can we reach example.org",
        "what is the ip address of this machine",
        "does dns work",
    ),
    "package-updates": (
        "are there updates",
        "is the system up to date",
        "which packages can be upgraded",
        "any security updates pending",
        "is a reboot required",
    ),
    "service-triage": (
        "is nginx ok",
        "which services failed",
        "why did the database service crash",
        "status of ssh",
        "what is wrong with docker.service",
    ),
    "who-uses": (
        "who is using port 8080",
        "which process holds /var/log/syslog open",
        "what is pid 4242 doing",
        "why can I not unmount /mnt/backup",
        "open files of process 1",
    ),
}
