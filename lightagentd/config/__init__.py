"""The configuration files, declared once. `configuration.load` reads them."""
