"""What is known of models: windows, prices, abilities. `facts.Metadata` is what the daemon asks."""
