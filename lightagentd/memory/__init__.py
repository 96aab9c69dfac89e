"""The memories of agents about each user, beyond one conversation.

`memories.Memories` belongs to the registry and has the rules: who may keep what, candidates, limits and
expiry. It uses a store: the history, or an administrator's own (`store.Store`, loaded by `own_store`).
`profiles` has what each user wants every agent to know about them.

A memory belongs to one uid, not to a session: it stays when its session is deleted, and still names that
session. `lactl memory forget` removes a memory.
"""
