"""The operations on tokens, and the one by which a connection of the gateway begins to speak for a user."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.control import tokens
from lightagentd.control.authz import Caller
from lightagentd.control.grants import GATEWAY_USER, SCOPES, Grant
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import Conflict, InvalidArgument, PermissionDenied
from lightagentd.host.client_socket import NotAClient, client_of
from lightagentd.host.users import user_name
from lightagentd.policy.operation import Operation
from lightagentd.text.agent_name import NAME

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

_NO_GROUP = (1 << 32) - 1
_LONGEST_S = 10 * 366 * 86_400


class Tokens(Operations, interface="org.lightagent1.Tokens"):
    """Tokens, with which programs speak for a user through the gateway. A user has their own, and root sees
    those of all. A token cannot do more than its owner may without being asked for a password.
    """

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._tokens, self._now = access, runtime.tokens, runtime.now
        self._ledger = runtime.registry.shared.ledger

    @method("Authenticate", returns="identity", interface="org.lightagent1.Manager", over_bus=False)
    async def authenticate(self, caller: Caller, *, token: str = "") -> api.Identity:
        """Make this connection speak for the owner of a token, or, without a token, for the client whose
        connection to the gateway's socket is passed with the call (SCM_RIGHTS). For the gateway, root and the
        daemon's own user, once on each connection; until then the gateway may do nothing else.
        """
        connection = caller.connection
        if connection is None or not caller.may_authenticate:
            if caller.grant is not None:
                raise Conflict("This connection speaks for somebody already.", suggestion="Open another one.")
            raise PermissionDenied(
                "Only the gateway authenticates for others.", suggestion="You need no token on this socket."
            )
        fd = connection.passed.take()
        if token:
            if fd >= 0:
                os.close(fd)
            found, grant = self._tokens.check(token)
            gid, groups = _groups_of(found.owner)
            became = replace(caller, uid=found.owner, gid=gid, groups=groups, grant=grant)
            limits = found.limits
        else:
            became, limits = self._client(caller, fd), tokens.Limits()
        connection.become(became)
        assert became.grant is not None
        return api.Identity(
            uid=became.uid,
            user=user_name(became.uid),
            name=became.grant.name,
            scopes=sorted(became.grant.scopes),
            agents=sorted(became.grant.agents),
            expires_us=became.grant.expires_us,
            limits=api.TokenLimits(**asdict(limits)),
        )

    def _client(self, caller: Caller, fd: int) -> Caller:
        """The caller for whom a passed connection is. Raises PermissionDenied, InvalidArgument."""
        if fd < 0:
            raise InvalidArgument(
                "There is neither a token nor a client's connection with the call.", field="token"
            )
        path = Path(self._now.config.daemon.gateway_socket)
        try:
            peer = client_of(fd, path, trusted=frozenset({0, os.geteuid()}))
            if user_name(peer.uid) == GATEWAY_USER:
                raise NotAClient("it is the gateway's own")
        except NotAClient as err:
            raise self._tokens.refused_client(str(err)) from err
        assert peer.process is not None
        assert caller.process is not None
        peer.process.gone = caller.process.gone
        self._tokens.used_by_client(peer.uid)
        names = ("uid", "gid", "pid", "groups", "process")
        who: dict[str, Any] = {name: getattr(peer, name) for name in names}
        return replace(caller, grant=Grant(id=f"uid:{peer.uid}", has_left=peer.process.has_ended), **who)

    @method("Create", returns="created")
    async def create(
        self,
        caller: Caller,
        name: str,
        scopes: list[str],
        *,
        agents: list[str] | None = None,
        expires_s: int = 0,
        user: str = "",
        limits: Any = None,
    ) -> api.NewToken:
        """Make a token, for people alone, who may inspect and must have each of its scopes: inspect,
        prompt, approve. Its secret is in the answer, and nowhere else. user is for root. No agents stands for
        all. limits is an object with some of the names of TokenLimits.
        """
        caller = await self._access.admit_owner(caller, Operation.INSPECT)
        given = _scopes(scopes)
        owner = caller.uid
        if user:
            if not caller.is_administrator:
                raise PermissionDenied("Only root makes tokens for others.", suggestion="Leave out the user.")
            owner = _uid_of(user)
        if not 0 <= expires_s <= _LONGEST_S:
            raise InvalidArgument(f"expires_s must be from 0 to {_LONGEST_S}.", field="expires_s")
        names = sorted(set(agents or ()))
        if wrong := [one for one in names if NAME.fullmatch(one) is None]:
            raise InvalidArgument(f"{wrong[0][:60]!r} is no name of an agent.", field="agents")
        for scope in given:
            for agent in names or [""]:
                caller = await self._access.admit(caller, scope, agent=agent)
        await self._access.person(caller)
        made, secret = await self._tokens.create(
            tokens.Token(
                id="",
                name=name,
                owner=owner,
                sha256="",
                scopes=tuple(given),
                agents=tuple(names),
                limits=_limits(limits),
                created_us=0,
                expires_us=int((time.time() + expires_s) * 1e6) if expires_s else 0,
            ),
            by=caller.uid,
        )
        return api.NewToken(token=self._shown(made), secret=secret)

    @method("List", returns="tokens")
    async def listed(self, caller: Caller) -> list[api.Token]:
        """The caller's tokens, without their secrets; root's answer has those of all."""
        caller = await self._access.admit_owner(caller, Operation.INSPECT)
        return [self._shown(one) for one in self._tokens.listed(_whose(caller))]

    @method("Revoke", returns="token")
    async def revoke(self, caller: Caller, name: str) -> api.Token:
        """End a token, by its name or ID: calls with it are refused at once, and its streams end."""
        caller = await self._access.admit_owner(caller, Operation.INSPECT)
        return self._shown(await self._tokens.revoke(name, _whose(caller), by=caller.uid))

    def _shown(self, token: tokens.Token) -> api.Token:
        return shown(
            api.Token,
            token,
            uid=token.owner,
            user=user_name(token.owner),
            limits=api.TokenLimits(**asdict(token.limits)),
            tokens_today=self._ledger.tokens_today(token.id),
        )


def _whose(caller: Caller) -> int | None:
    return None if caller.is_administrator else caller.uid


def _scopes(given: list[str]) -> list[Operation]:
    """In their order. Raises InvalidArgument."""
    known = ", ".join(SCOPES)
    if wrong := [one for one in given if one not in SCOPES]:
        raise InvalidArgument(
            f"{wrong[0][:60]!r} is no scope of a token.", field="scopes", suggestion=f"There are: {known}."
        )
    if not given:
        raise InvalidArgument("A token needs a scope.", field="scopes", suggestion=f"There are: {known}.")
    return [one for one in SCOPES if one in given]


def _limits(given: Any) -> tokens.Limits:
    """Raises InvalidArgument."""
    known = tokens.Limits.__dataclass_fields__
    found = {} if given is None else given
    if not isinstance(found, dict) or not found.keys() <= known.keys():
        raise InvalidArgument(
            "limits is an object with names of limits.",
            field="limits",
            suggestion=f"Known: {', '.join(known)}.",
        )
    if not all(type(one) is int and 0 <= one < 1 << 53 for one in found.values()):
        raise InvalidArgument("A limit is an integer of at least 0, which is none.", field="limits")
    return tokens.Limits(**found)


def _uid_of(user: str) -> int:
    """Raises InvalidArgument."""
    try:
        return int(user) if user.isdecimal() and len(user) < 10 else pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError) as err:
        raise InvalidArgument(f"There is no user {user[:60]!r}.", field="user") from err


def _groups_of(uid: int) -> tuple[int, frozenset[int]]:
    """A user's groups as the database has them now."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return _NO_GROUP, frozenset()
    return user.pw_gid, frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
