"""D-Bus: the one package that uses dbus-next. `connection.Bus` is a connection to a bus."""
