"""The event model, the stored history, the live feed and the journal.

`context`, `model` and `types/` define an event. `redaction/` removes secrets from it. `history` stores events
and `queries` reads them, both from the files described in `store/`. `subscriptions` and `feed` deliver events
while they happen, and `journal/` sends them to journald. `audit/` reveals tampering, `backup/` makes and
reads backups and exports, and `corruption/` handles damage by the disk.
"""
