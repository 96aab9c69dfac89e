"""What somebody tries who runs code as the daemon's user, on a booted system.

`attacker` runs as that user, in the place of the daemon and outside of its unit, and does what it is told.
`director` runs as root beside it: it has the attacks carried out, is the person who answers, and looks for
what came of each. The attacks are in the other modules.
"""
