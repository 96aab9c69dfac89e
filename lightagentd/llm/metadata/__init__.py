"""Facts about models: windows, prices, abilities. The daemon asks `facts.Metadata`."""
