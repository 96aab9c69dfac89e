"""The benchmarks: `make bench`. They print figures, and assert nothing about time."""

import lightagentd as lightagentd  # an installed package has an asyncvarlink of its own, and finds it
