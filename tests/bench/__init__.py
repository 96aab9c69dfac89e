"""The benchmarks: `make bench`. They print figures, and assert nothing about time."""
