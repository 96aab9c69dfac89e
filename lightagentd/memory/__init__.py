"""The memories of agents about each user, beyond one conversation.

`memories.Memories` belongs to the registry and has the rules: who may keep what, candidates, limits and
expiry; `admission` has the policy of an agent. It uses a store: the history, or an administrator's own
(`store.Store`, loaded by `own_store`). `stores` are further ones that only find, such as mem0.
`profiles` has what each user wants every agent to know about them.

A memory belongs to one uid, not to a session: but for the scope session it stays when its session is
deleted, and still names that session. Facts about the machine belong to nobody (`entries.MACHINE`).
`lactl memory forget` removes a memory.
"""
