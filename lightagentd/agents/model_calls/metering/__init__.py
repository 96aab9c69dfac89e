"""What turns use and may use: `meter.Meter` is what a turn has of it, `ledger.Ledger` the whole."""
