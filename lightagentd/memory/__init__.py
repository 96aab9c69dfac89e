"""The memories of agents about each user, beyond one conversation.

`memories.Memories` has the rules and belongs to the registry: who may keep what, what waits for a person,
what is too much, what has expired. Below it lies a store: the history, or one of the administrator's own
(`store.Store`, loaded by `own_store`). `profiles` has what each user wants every agent to know of them.

A memory belongs to one uid, never to a session: when its session is deleted it stays, and the session that
it names is one that is gone. `lactl memory forget` is what takes a memory away.
"""
