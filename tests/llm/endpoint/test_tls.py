"""Certificates, with real TLS servers: who is trusted, who is not, and what is to be done about it."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import ModelCertificate, ModelError, ModelGarbled
from tests.llm.endpoint.asking import asked, failed, said
from tests.llm.endpoint.certificates import Authority
from tests.llm.endpoint.raw_server import RawServer, Reply, TLSRefuser, response
from tests.scripted_model import DONE, chunk

HELLO = [Reply([response(chunk({"content": "hello"}) + chunk({}, "stop") + DONE)])]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def error_of(
    tls: ssl.SSLContext | None, replies: Sequence[Reply] = HELLO, **settings: Any
) -> ModelError:
    async with RawServer(replies, tls) as server:
        url = server.base_url.replace("http:", "https:")
        err = await failed(base_url=url, api_key="sk-very-secret", **settings)
        assert not server.requests
    assert not err.transient
    assert "secret" not in err.message
    return err


async def test_a_certificate_of_an_authority_in_ca_file_is_trusted(authority: Authority) -> None:
    async with RawServer(HELLO, authority.server()) as server:
        assert said(await asked(base_url=server.base_url, ca_file=authority.file)) == "hello"


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(authority: Authority) -> None:
    err = await error_of(authority.server())
    assert type(err) is ModelCertificate
    assert "cannot be trusted" in err.message
    assert "ca_file" in err.suggestion


async def test_a_ca_file_is_in_place_of_the_system_and_not_beside_it(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "Other CA")
    assert type(await error_of(authority.server(), ca_file=other.file)) is ModelCertificate


async def test_a_certificate_that_signs_itself_is_not_trusted(authority: Authority) -> None:
    err = await error_of(authority.server(self_signed=True), ca_file=authority.file)
    assert type(err) is ModelCertificate
    assert "ca_file" in err.suggestion


async def test_a_certificate_whose_time_is_over_is_not_trusted(authority: Authority) -> None:
    err = await error_of(authority.server(days=-1), ca_file=authority.file)
    assert type(err) is ModelCertificate
    assert "expired" in err.message
    assert "clock" in err.suggestion


@pytest.mark.parametrize("name", ["127.0.0.2", "model.example.org"])
async def test_a_certificate_for_another_name_is_not_trusted(authority: Authority, name: str) -> None:
    err = await error_of(authority.server(name), ca_file=authority.file)
    assert type(err) is ModelCertificate
    assert "another name" in err.suggestion


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_is_shown_where_one_is_wanted(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    tls = authority.server()
    tls.minimum_version = tls.maximum_version = version
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(authority.file)
    mine = authority.issue("lightagentd")
    async with RawServer(HELLO, tls) as server:
        settings: dict[str, Any] = {"base_url": server.base_url, "ca_file": authority.file}
        assert said(await asked(**settings, client_cert=mine)) == "hello"
        assert said(await asked(**settings, client_cert=mine, client_key=mine)) == "hello"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", [False, True])
async def test_a_client_certificate_that_is_missing_or_a_strangers_is_told(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, shown: bool
) -> None:
    tls = authority.server()
    tls.minimum_version = tls.maximum_version = version
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(authority.file)
    stranger = Authority(tmp_path, "Other CA").issue("stranger") if shown else None
    async with TLSRefuser(tls) as server:
        err = await failed(base_url=server.base_url, ca_file=authority.file, client_cert=stranger)
    assert type(err) is ModelCertificate
    assert not err.transient
    assert "client_cert" in err.suggestion


async def test_a_server_without_tls_is_told(authority: Authority) -> None:
    page = [Reply([b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"], read=False)]
    err = await error_of(None, page)
    assert isinstance(err, ModelGarbled)
    assert "http://" in err.suggestion


@pytest.mark.parametrize("content", [None, "no certificate"])
@pytest.mark.parametrize("setting", ["ca_file", "client_cert"])
async def test_a_file_without_a_certificate_is_told(
    tmp_path: Path, setting: str, content: str | None
) -> None:
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_text(content)
    err = await failed(base_url="https://127.0.0.1:9/v1", **{setting: path})
    assert type(err) is ModelCertificate
    assert setting in err.suggestion


async def test_a_renewed_ca_file_is_read_anew(authority: Authority, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Authority(tmp_path, "Old CA").file.read_bytes())
    async with RawServer(HELLO, authority.server()) as server:
        err = await failed(base_url=server.base_url, ca_file=ca_file)
        assert type(err) is ModelCertificate
        ca_file.write_bytes(authority.file.read_bytes())
        assert said(await asked(base_url=server.base_url, ca_file=ca_file)) == "hello"
