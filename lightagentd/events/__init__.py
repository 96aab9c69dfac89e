"""What happened: the event model, the stored history, the live feed and the journal.

`context`, `model` and `types/` say what an event is, `redaction/` takes its secrets out, `history` stores it
and `queries` reads it (`store/` has how), `subscriptions` and `feed` tell of it while it happens, `journal/`
passes it on. `audit/` shows tampering, `backup/` makes and reads backups and exports, `corruption/` is for
what the disk did.
"""
