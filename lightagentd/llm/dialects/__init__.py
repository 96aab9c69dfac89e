"""What model servers speak: one module for each protocol, all behind `dialect.Dialect`."""
