"""Becomes the user whose question it is, for good: the kernel then names them, and their rights count."""

from __future__ import annotations

import os
import pwd

from lightagentd.errors import PermissionDenied


def become(account: pwd.struct_passwd) -> None:
    """Become that user for good, with their group, their supplementary groups and none of root's rights.
    Raises PermissionDenied where this process may not.
    """
    if os.getuid() == os.geteuid() == account.pw_uid:
        return
    try:
        os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    except OSError as err:
        raise PermissionDenied(
            f"This process may not become {account.pw_name}, whose question it is: {err.strerror}.",
            suggestion="Start the unit that does it, which root runs.",
        ) from err
    os.environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
