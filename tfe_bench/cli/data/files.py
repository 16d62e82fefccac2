"""Search for data files, and errors for unreadable files."""

from __future__ import annotations

import os
from pathlib import Path

from tfe_bench.errors import DataError, did_you_mean

SUFFIXES = (".csv", ".npy")
INT64 = "-2^63 .. 2^63-1"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def check_data_files_exist(*files: Path | str | None) -> None:
    """Reject missing files before a slow step starts.

    Raises:
        DataError: a file is missing; the text suggests the nearest name in its folder.
    """
    for file in files:
        if file is not None and not Path(file).exists():
            raise DataError(
                f"There is no file {str(file)!r}.{_suggest_nearby_file(Path(file))}",
                code="file-not-found",
                received=file,
            )


def check_data_file_suffix(file: Path) -> None:
    """Reject other suffixes than .csv and .npy.

    Raises:
        DataError: the file has another suffix or no suffix.
    """
    if file.suffix.lower() not in SUFFIXES:
        suffix_text = f"suffix {file.suffix!r}" if file.suffix else "no suffix"
        raise DataError(
            f"Expected a .csv or .npy file. Received: {str(file)!r} with {suffix_text}.",
            code="unsupported-file-type",
            received=file.name,
            expected=" or ".join(SUFFIXES),
        )


def find_readable_data_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a readable data file.

    Raises:
        DataError: the path is not a readable file; the text suggests a similar name.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise DataError(
                f"Expected a file. Received: {str(file)!r}, a folder.",
                code="not-a-file",
                received="a folder",
            )
        if not file.exists():
            raise DataError(
                f"There is no file {str(file)!r}.{_suggest_nearby_file(file)}",
                code="file-not-found",
                received=file,
            )
        check_data_file_suffix(file)
        if not file.is_file():
            raise DataError(
                f"Expected a regular file. Received: {str(file)!r}, a pipe or device.",
                code="not-a-file",
                received="no regular file",
            )
    except (OSError, ValueError) as error:  # a too long name, a null byte, an inaccessible folder
        raise unreadable_file_error(file, error) from error
    return file


def _suggest_nearby_file(file: Path) -> str:
    if not file.parent.is_dir():
        return f" Its folder {str(file.parent)!r} is missing too."
    try:
        suffixes = {*SUFFIXES, file.suffix.lower()}
        names = [p.name for p in file.parent.iterdir() if p.suffix.lower() in suffixes]
    except OSError:
        return ""
    return did_you_mean(file.name, names)


def unreadable_file_error(file: Path, error: Exception) -> DataError:
    """Return the error for a file that the operating system refuses to read."""
    if isinstance(error, PermissionError):
        return DataError(
            f"No permission to read {str(file)!r}. Ask its owner, or check its mode.",
            code="file-not-readable",
            received="no permission",
        )
    reason = getattr(error, "strerror", None) or type(error).__name__
    return DataError(
        f"Cannot read {str(file)!r}: {reason}.", code="file-not-readable", received=reason
    )
