"""D-Bus. Only this package uses dbus-next. `connection.Bus` is a connection to a bus."""
