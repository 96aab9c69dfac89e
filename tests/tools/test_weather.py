"""The tools location and weather, against a service on loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import NotFound, PermissionDenied, ToolError
from lightagentd.tool import Effect, Result
from lightagentd.toolkit.web.service import address_of
from lightagentd.worker.loader import load_tool
from tests.tools.conftest import TOOLS, CallContext
from tests.tools.web_server import Asked, Served, reply, serve

ROME = {"name": "Rome", "admin1": "Lazio", "country": "Italy", "latitude": 41.9, "longitude": 12.5}
FORECAST = {
    "current_units": {"temperature_2m": "°C", "wind_speed_10m": "km/h"},
    "current": {"time": "2026-01-02T12:00", "temperature_2m": 9.5, "weather_code": 61, "wind_speed_10m": 12},
    "daily_units": {"temperature_2m_min": "°C", "temperature_2m_max": "°C"},
    "daily": {
        "time": ["2026-01-02", "2026-01-03"],
        "temperature_2m_min": [4, 5],
        "temperature_2m_max": [10, None],
        "weather_code": [3, 4000],
    },
}
HERE = {
    "city": "Oslo",
    "country_name": "Norway",
    "latitude": 59.9,
    "longitude": 10.7,
    "timezone": "Europe/Oslo",
}


def answer(asked: Asked) -> bytes:
    path = asked.line.split()[1]
    found: Any = FORECAST if path.startswith("/forecast") else HERE if path.startswith("/here") else {}
    if path.startswith("/search?name=Rome"):
        found = {"results": [ROME]}
    if path.startswith("/busy"):
        return reply(b'{"error": true, "reason": "too many"}', status="429 Too Many")
    if path.startswith("/page"):
        return reply(b"<html>Sign in")
    return reply(json.dumps(found).encode(), content_type="application/json")


@asynccontextmanager
async def services(monkeypatch: pytest.MonkeyPatch, **paths: str) -> AsyncIterator[Served]:
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "127.0.0.0/8")
    async with serve(answer) as server:
        for name, path in {"location": "/here", "places": "/search", "weather": "/forecast", **paths}.items():
            monkeypatch.setenv(f"LIGHTAGENT_{name.upper()}_URL", server.url(path))
        yield server


async def call(tmp_path: Path, tool: str, called: str, /, **args: Any) -> Result:
    found = load_tool(TOOLS / f"{tool}.py")
    assert found.error == ""
    one = found.actions[called]
    assert (one.effect, one.host) == (Effect.REACH, "server")
    return await one.method(CallContext(scratch=tmp_path), one.args_model.model_validate(args))


async def test_the_weather_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with services(monkeypatch) as server:
        result = await call(tmp_path, "weather", "show", latitude=41.9, longitude=12.5, days=2)
        assert result.output.splitlines() == [
            "41.9, 12.5, 2026-01-02T12:00: light rain, temperature 9.5 °C, wind 12 km/h",
            "2026-01-02: overcast, from 4 °C, to 10 °C",
            "2026-01-03: from 5 °C",
        ]
        assert "latitude=41.9&longitude=12.5" in server.asked[0].line
        with pytest.raises(ValueError, match="server"):
            await call(tmp_path, "weather", "show", latitude=1, longitude=1, server="https://evil.example/")


async def test_the_place_of_this_machine_and_of_a_town_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with services(monkeypatch):
        here = await call(tmp_path, "location", "here")
        assert here.output.endswith(
            "here: Oslo, Norway; latitude 59.9, longitude 10.7, time zone Europe/Oslo."
        )
        found = await call(tmp_path, "location", "find", name="Rome")
        assert found.output == "Rome, Lazio, Italy; latitude 41.9, longitude 12.5."
        assert found.metadata["latitude"] == 41.9
        with pytest.raises(NotFound, match="There is no place 'Nowhere'"):
            await call(tmp_path, "location", "find", name="Nowhere")


async def test_what_went_wrong_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, said in (("/busy", "takes no more questions now"), ("/page", "answered 200 and no JSON")):
        async with services(monkeypatch, location=path):
            with pytest.raises(ToolError, match=said):
                await call(tmp_path, "location", "here")
    async with services(monkeypatch, location="/none", weather="/none"):
        with pytest.raises(ToolError, match="does not know where"):
            await call(tmp_path, "location", "here")
        with pytest.raises(ToolError, match="answered without the weather"):
            await call(tmp_path, "weather", "show", latitude=1, longitude=1)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        closed = sock.getsockname()[1]
    monkeypatch.setenv("LIGHTAGENT_LOCATION_URL", f"http://127.0.0.1:{closed}/")
    with pytest.raises(ToolError, match="maybe because this machine has no network") as caught:
        await call(tmp_path, "location", "here")
    assert "can name another service" in caught.value.suggestion
    monkeypatch.setenv("LIGHTAGENT_WEB_ALLOW", "")
    with pytest.raises(PermissionDenied):
        await call(tmp_path, "location", "here")


def test_the_address_is_that_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTAGENT_WEATHER_URL", raising=False)
    monkeypatch.setenv("LIGHTAGENT_CONFIG_DIR", str(tmp_path))
    assert address_of("weather") == "https://api.open-meteo.com/v1/forecast"
    (tmp_path / "lightagentd.toml").write_text('[worker]\nweather_url = "https://meteo.example/v1"\n')
    assert address_of("weather") == "https://meteo.example/v1"
    (tmp_path / "lightagentd.toml").write_text("[worker\n")
    assert address_of("weather") == "https://api.open-meteo.com/v1/forecast"
