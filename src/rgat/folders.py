"""Find the folder for files that can be computed or downloaded again."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache folder for `rgat`, or a private temporary folder for a user without a home."""
    folder = home_folder()
    return temporary_folder() if folder is None else folder


def home_folder() -> Path | None:
    """Return the `rgat` folder in the user's cache folder; None for a user without a home."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "rgat"
    except RuntimeError:  # no HOME, and the user id has no entry, as in containers with a random user id
        return None


def temporary_folder() -> Path:
    """Return a temporary folder that only this user can write to; create it if it does not exist."""
    owner = os.getuid() if hasattr(os, "getuid") else None  # systems without user ids have a temporary folder per user
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
