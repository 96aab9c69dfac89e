"""Counts what turns use, and holds them to the budgets: a `Meter` for each turn, one `Ledger` for all."""
