"""``verlift parity``: prove that both trainers agree, or say where they part first. A file a command."""

from verlift.parity import (  # noqa: F401  each joins the application
    bisect,
    calibrate,
    check,
    compare,
    importing,
    matrix,
    mutants,
    record,
    recorder,
    reference,
    report,
    run,
    sweep,
)
from verlift.parity.app import app

__all__ = ["app"]
