"""``verlift parity``: prove that both trainers agree, or say where they part first. A file a command."""

from verlift.parity import compare, importing, recorder, reference, report, run  # noqa: F401  each joins the application
from verlift.parity.app import app

__all__ = ["app"]
