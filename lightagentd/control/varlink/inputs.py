"""The Varlink interface `org.lightagent1.Inputs`; its events come through `Events.Subscribe`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Inputs(Adapter, VarlinkInterface, name="org.lightagent1.Inputs"):
    """What agents ask people in the middle of a turn. Subscribe to the topic input to hear of it."""

    @varlinkmethod(return_parameter="inputs")
    async def List(self, *, all: bool = False) -> list[api.Input]:  # noqa: A002 - the parameter's name
        """The questions that wait and that the caller may see, oldest first; with all, also those that are
        over.
        """
        return await self.service.list_inputs(self.caller, every=all)

    @varlinkmethod(return_parameter="input")
    async def Get(self, *, input: str) -> api.Input:  # noqa: A002 - the parameter's name
        """One question."""
        return await self.service.get_input(self.caller, input)

    @varlinkmethod(return_parameter="input")
    async def Answer(self, *, input: str, text: str) -> api.Input:  # noqa: A002 - the parameter's name
        """Answer a question; where it has choices, with one of them. The first answer counts."""
        return await self.service.answer_input(self.caller, input, text)
