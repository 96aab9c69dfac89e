"""What operations give back: plain data, the same on every control plane.

The Varlink interface descriptions are generated from these classes, so a change here is a change of the
public interface; `tests/control/test_interfaces.py` freezes them. Times are UTC in microseconds. The modules
do without `from __future__ import annotations`: the Varlink library reads annotations at run time.
"""

from lightagentd.api.agents import *
from lightagentd.api.daemon import *
from lightagentd.api.evals import *
from lightagentd.api.flows import *
from lightagentd.api.history import *
from lightagentd.api.hooks import *
from lightagentd.api.mcp import *
from lightagentd.api.models import *
from lightagentd.api.policy import *
from lightagentd.api.sessions import *
from lightagentd.api.tokens import *
from lightagentd.api.triggers import *
from lightagentd.api.turn_events import LAST_EVENTS as LAST_EVENTS
from lightagentd.api.turn_events import TurnEvent as TurnEvent
