"""Workflow commands of GitHub Actions. Imports nothing heavy, so that a command that could not start can be told."""

from __future__ import annotations

import os


def is_wanted(github: bool | None) -> bool:
    """What was asked for, or None: whether GitHub Actions runs this process."""
    return os.environ.get("GITHUB_ACTIONS") == "true" if github is None else github


def error(title: str, message: str) -> str:
    """One workflow command, its values escaped as the runner decodes them."""
    return f"::error title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
