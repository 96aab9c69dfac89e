"""The D-Bus plane `org.lightagent1`, from the outside in.

`plane` owns the work on a connection and answers calls; `methods` makes them from the interfaces that Varlink
has, with `types` for values; `streams` and `peers` are for answers of many parts and who gets them. `objects`
are agents, sessions, approvals and turns with properties; `watchers` are told of their `changes`.
`introspection` and `replies` are what every object says.
"""
