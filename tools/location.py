"""Where this machine, or a town, is: asked of services on the web.

Where the machine is comes from the address that it has on the internet, so it is that of its provider's
place. The addresses of the services are those of `[worker]` in lightagentd.toml.
"""

from typing import Any, Literal

from pydantic import Field

from lightagentd.errors import NotFound
from lightagentd.tool import Args, Context, Effect, Result, Tool, ToolError, action
from lightagentd.toolkit.web.service import address_of, ask

KEPT = ("name", "city", "admin1", "region", "country", "latitude", "longitude", "timezone")
LOCATION, PLACES = address_of("location"), address_of("places")


class HereArgs(Args):
    server: Literal[LOCATION] = Field(default=LOCATION, description="The service that is asked.")  # type: ignore[valid-type]


class FindArgs(Args):
    name: str = Field(min_length=2, max_length=100, description="A town, such as Rome.")
    server: Literal[PLACES] = Field(default=PLACES, description="The service that is asked.")  # type: ignore[valid-type]


class Location(Tool):
    """Where this machine or a town is: coordinates, country, time zone. It asks services on the web."""

    name = "location"

    @action(effect=Effect.REACH, taints=True, host="server")
    async def here(self, ctx: Context, args: HereArgs) -> Result:
        """Say about where this machine is, by its address on the internet; the service sees that address."""
        found = await ask(ctx, args.server, {})
        place: dict[str, Any] = {
            "country": found.get("country_name") or found.get("country"),
            "city": found.get("city"),
            "region": found.get("region"),
            "latitude": found.get("latitude", found.get("lat")),
            "longitude": found.get("longitude", found.get("lon")),
            "timezone": found.get("timezone"),
        }
        return _result(place, "By its address on the internet, this machine is about here: ")

    @action(effect=Effect.REACH, taints=True, host="server")
    async def find(self, ctx: Context, args: FindArgs) -> Result:
        """Say where a town is."""
        found = await ask(ctx, args.server, {"name": args.name, "count": 1, "format": "json"})
        results = found.get("results")
        if not isinstance(results, list) or not results or not isinstance(results[0], dict):
            raise NotFound(
                f"There is no place {args.name[:60]!r}.", suggestion="Write the name of a town alone."
            )
        return _result(results[0], "")


def _result(place: dict[str, Any], start: str) -> Result:
    kept = {key: one for key in KEPT if isinstance(one := place.get(key), str | int | float)}
    if not all(isinstance(kept.get(one), int | float) for one in ("latitude", "longitude")):
        raise ToolError("The service does not know where that is.")
    words = [one for key in ("name", "city", "admin1", "region", "country") if (one := kept.get(key))]
    where = ", ".join(dict.fromkeys(map(str, words))) or "a place without a name"
    told = f"{start}{where}; latitude {kept['latitude']}, longitude {kept['longitude']}"
    zone = f", time zone {kept['timezone']}" if "timezone" in kept else ""
    return Result(output=f"{told}{zone}.", metadata=kept)
