"""Locating data files, and errors for files that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

from tfe_bench.errors import DataError, did_you_mean

SUFFIXES = (".csv", ".npy")
INT64 = "-2^63 .. 2^63-1"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def check_files_exist(*files: Path | str | None) -> None:
    """Reject missing files before a slow step starts.

    Raises:
        DataError: naming the first one, and the nearest name beside it.
    """
    for file in files:
        if file is not None and not Path(file).exists():
            raise DataError(f"There is no file {str(file)!r}.{_suggest_nearby_file(Path(file))}")


def check_suffix(file: Path) -> None:
    """Reject a file name that does not end in .csv or .npy (DataError)."""
    if file.suffix.lower() not in SUFFIXES:
        given = f"suffix {file.suffix!r}" if file.suffix else "no suffix"
        raise DataError(f"Data files end in .csv or .npy. Received: {str(file)!r} with {given}.")


def find_readable_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a readable data file, else raise a DataError with a suggestion."""
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(f"Data is read from a file. Received: {str(file)!r}, a folder.")
        if not file.exists():
            raise DataError(f"There is no file {str(file)!r}.{_suggest_nearby_file(file)}")
        check_suffix(file)
        if not file.is_file():
            raise DataError(f"Data is read from a file. Received: {str(file)!r}, which is none.")
    except (OSError, ValueError) as error:  # a name too long, a null byte, a closed folder
        raise unreadable_error(file, error) from error
    return file


def _suggest_nearby_file(file: Path) -> str:
    if not file.parent.is_dir():
        return f" Its folder {str(file.parent)!r} is missing too."
    try:
        wanted = {*SUFFIXES, file.suffix.lower()}
        names = [p.name for p in file.parent.iterdir() if p.suffix.lower() in wanted]
    except OSError:
        return ""
    return did_you_mean(file.name, names)


def unreadable_error(file: Path, error: Exception) -> DataError:
    """Return the error for a file that the operating system does not let us read."""
    if isinstance(error, PermissionError):
        return DataError(f"No permission to read {str(file)!r}. Ask its owner, or check its mode.")
    reason = getattr(error, "strerror", None) or type(error).__name__
    return DataError(f"Cannot read {str(file)!r}: {reason}.")
