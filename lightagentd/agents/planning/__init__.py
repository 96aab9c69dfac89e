"""Plan mode: how a plan is drafted, looked at and applied. Others use `plans.Plans`."""
