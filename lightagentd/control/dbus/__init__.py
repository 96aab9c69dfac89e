"""The D-Bus plane `org.lightagent1`, from the outside in.

`plane` works on a connection and answers calls. `methods` derives the methods from the Varlink interfaces,
with `types` for values. `streams` and `peers` deliver answers of many parts. `objects` are agents, sessions,
approvals and turns with properties; `watchers` receive their `changes`. `introspection` and `replies` hold
what all objects have in common.
"""
