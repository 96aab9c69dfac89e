"""The control planes: adapters over one `service.Service`."""
