"""Every topic and type of event, each declared once: its class says what its data hold.

An event is made with `SomeType(...).event()`. What tools emit has topics and types of their own.
"""
