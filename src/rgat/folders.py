"""Where files that can be made again are kept: the user's cache folder, or a private temporary one."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder for `rgat`; for a user without a home a private temporary one."""
    folder = home_folder()
    return temporary_folder() if folder is None else folder


def home_folder() -> Path | None:
    """Return the cache folder that the user's environment names; None without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "rgat"
    except RuntimeError:  # neither HOME nor an entry for the user id, as in containers with a random one
        return None


def temporary_folder() -> Path:
    """Return a folder below the temporary one that nobody else can put files into; make it if need be."""
    owner = os.getuid() if hasattr(os, "getuid") else None  # without user ids, each user has a temporary folder
    try:
        folder = Path(tempfile.gettempdir()) / ("rgat" if owner is None else f"rgat-{owner}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = owner is None or (status.st_uid == owner and not status.st_mode & 0o077)
        if stat.S_ISDIR(status.st_mode) and is_private:
            return folder
        reason = f"others can write to {folder}"
    except OSError as error:
        reason = str(error)
    raise ValueError(f"a cache folder must be given for a user without a home ({reason}); set XDG_CACHE_HOME to one")
