"""The Varlink interface `org.lightagent1.Models`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Models(Adapter, VarlinkInterface, name="org.lightagent1.Models"):
    """The language models: which are in use, what is known of them, and whether they work."""

    @varlinkmethod(return_parameter="models")
    async def List(self, *, provider: str | None = None, all: bool = False) -> list[api.Model]:  # noqa: A002
        """The models that agents or the configuration name. With provider, those of that one that anything is
        known of; with all, those of every configured provider, too.
        """
        return await self.service.list_models(self.caller, provider=provider or "", every=all)

    @varlinkmethod(return_parameter="providers")
    async def Providers(self) -> list[api.ModelProvider]:
        """The endpoints: those of the configuration and of the environment, and servers on this machine."""
        return await self.service.list_model_providers(self.caller)

    @varlinkmethod(return_parameter="model")
    async def Show(self, *, model: str) -> api.Model:
        """One model, PROVIDER/MODEL, whether it is in use or not."""
        return await self.service.show_model(self.caller, model)

    @varlinkmethod(return_parameter="report")
    async def Test(self, *, model: str | None = None, agent: str | None = None) -> api.ModelTest:
        """Make one real call with a function, which nothing runs, and say what was seen. It is counted like
        any other call. Without model the one of agent, or the default. A model that no agent uses is for
        administrators to test.
        """
        return await self.service.test_model(self.caller, model=model or "", agent=agent or "")

    @varlinkmethod(return_parameter="refreshed")
    async def Refresh(self, *, data: str) -> api.ModelsRefreshed:
        """Take another table of models: JSON in the shape of https://models.dev/api.json. It stays until the
        next one. The daemon itself fetches nothing.
        """
        return await self.service.refresh_models(self.caller, data)
