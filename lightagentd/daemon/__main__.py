"""`python -m lightagentd.daemon`: the daemon without the early start of workers that `lightagentd` has."""

from __future__ import annotations

from lightagentd.daemon.serving import main

if __name__ == "__main__":
    main()
