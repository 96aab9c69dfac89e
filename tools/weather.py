"""The weather now and in the next days, from a service that speaks Open-Meteo's interface.

The service's address is that of `[worker]` in lightagentd.toml.
"""

from typing import Any, Literal

from pydantic import Field

from lightagentd.tool import Args, Context, Effect, Result, Tool, ToolError, action
from lightagentd.toolkit.web.service import address_of, ask

WEATHER = address_of("weather")
NOW = {
    "temperature_2m": "temperature",
    "relative_humidity_2m": "humidity",
    "precipitation": "precipitation",
    "wind_speed_10m": "wind",
}
DAYS = {
    "temperature_2m_min": "from",
    "temperature_2m_max": "to",
    "precipitation_sum": "precipitation",
    "wind_speed_10m_max": "wind up to",
}
SKY = {0: "clear", 1: "mainly clear", 2: "partly cloudy", 3: "overcast", 45: "fog", 48: "freezing fog"}
SKY |= {
    51: "light drizzle",
    53: "drizzle",
    55: "dense drizzle",
    61: "light rain",
    63: "rain",
    65: "heavy rain",
}
SKY |= {56: "freezing drizzle", 57: "freezing drizzle", 66: "freezing rain", 67: "freezing rain"}
SKY |= {71: "light snow", 73: "snow", 75: "heavy snow", 77: "snow grains", 80: "light showers", 81: "showers"}
SKY |= {82: "violent showers", 85: "snow showers", 86: "heavy snow showers", 95: "thunderstorm"}
SKY |= {96: "thunderstorm with hail", 99: "thunderstorm with heavy hail"}
"""The weather codes of the WMO (table 4677) that Open-Meteo gives."""


class ShowArgs(Args):
    latitude: float = Field(ge=-90, le=90, description="Of the place; location.find gives that of a town.")
    longitude: float = Field(ge=-180, le=180)
    days: int = Field(default=3, ge=1, le=16, description="How many days, today among them.")
    server: Literal[WEATHER] = Field(default=WEATHER, description="The service that is asked.")  # type: ignore[valid-type]


class Weather(Tool):
    """The weather at coordinates: now, and a forecast. It asks a service on the web."""

    name = "weather"

    @action(effect=Effect.REACH, taints=True, host="server")
    async def show(self, ctx: Context, args: ShowArgs) -> Result:
        """Say the weather now and in the next days, at coordinates (location.find has those of a town)."""
        found = await ask(
            ctx,
            args.server,
            {
                "latitude": args.latitude,
                "longitude": args.longitude,
                "current": ",".join([*NOW, "weather_code"]),
                "daily": ",".join([*DAYS, "weather_code"]),
                "forecast_days": args.days,
                "timezone": "auto",
            },
        )
        now, daily = found.get("current"), found.get("daily")
        if (
            not isinstance(now, dict)
            or not isinstance(daily, dict)
            or not isinstance(daily.get("time"), list)
        ):
            raise ToolError("The service answered without the weather.")
        at = f"{args.latitude}, {args.longitude}, {now.get('time')}"
        lines = [f"{at}: {_words(now, NOW, found.get('current_units'))}"]
        for number, day in enumerate(daily["time"][: args.days]):
            one = {key: _nth(values, number) for key, values in daily.items()}
            lines.append(f"{day}: {_words(one, DAYS, found.get('daily_units'))}")
        return Result(output="\n".join(lines), metadata={"current": now, "daily": daily})


def _nth(values: Any, number: int) -> Any:
    return values[number] if isinstance(values, list) and number < len(values) else None


def _words(found: dict[str, Any], names: dict[str, str], units: Any) -> str:
    """Values with their units; what the service left out is left out."""
    code = found.get("weather_code")
    words = [SKY[code]] if isinstance(code, int) and code in SKY else []
    for key, name in names.items():
        if isinstance(value := found.get(key), int | float):
            words.append(f"{name} {value} {units.get(key, '') if isinstance(units, dict) else ''}".rstrip())
    return ", ".join(words) or "nothing is known"
