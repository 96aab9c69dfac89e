"""Plan mode: how a plan is drafted, looked at and applied. `plans.Plans` is what others use."""
