"""Mathematical answers compared as expressions, by math-verify in a process that can be stopped."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection

# An answer like 9^{9^{9}} keeps sympy busy for ever inside C code, where neither a thread nor a signal can stop it.
_SECONDS = 10.0
_START_SECONDS = 120.0


def compute_score(
    model_output: str, ground_truth: str, timeout_score: float = 0.0, timeout: float | None = None
) -> float:
    """1 when the answer in ``model_output`` equals ``ground_truth`` (LaTeX or plain) as an expression, else 0.

    timeout: seconds after which an answer that cannot be evaluated scores ``timeout_score``; ``None``: ten. Behaviour
    and parameters of ``verl.utils.reward_score.math_verify``.
    """
    equal = _checker.check(model_output, ground_truth, _SECONDS if timeout is None else timeout)
    return timeout_score if equal is None else float(equal)


class _Checker:
    """One child process that compares; started at the first call, and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def check(self, solution: str, ground_truth: str, seconds: float) -> bool | None:
        """Whether the two are equal; ``None`` when that took longer, or the child died of it."""
        with self._lock:
            connection = self._connection or self._start()
            connection.send((solution, ground_truth))
            try:
                if connection.poll(seconds):
                    return connection.recv()
            except EOFError:  # the child died of this answer, of memory for instance
                pass
            self._stop()
            return None

    def _start(self) -> Connection:
        # Not fork: the caller may hold threads of torch and Ray.
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        self._child = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._child.start()
        theirs.close()
        if not connection.poll(_START_SECONDS):
            self._stop()
            raise TimeoutError(f"the process that checks answers did not start within {_START_SECONDS:.0f} s")
        connection.recv()
        self._connection = connection
        return connection

    def _stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.join()
        self._child = self._connection = None


def _serve(connection: Connection) -> None:
    """Answer (solution, ground truth) pairs until the other end closes."""
    import logging

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # It warns at every call that the caller must bring a time limit, which is _SECONDS above.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    connection.send("ready")
    while True:
        try:
            solution, ground_truth = connection.recv()
        except EOFError:
            return
        gold = parse(f"\\boxed{{{ground_truth}}}", [LatexExtractionConfig()], parsing_timeout=None)
        answers = parse(solution, [ExprExtractionConfig(), LatexExtractionConfig()], parsing_timeout=None)
        connection.send(bool(verify(gold, answers, timeout_seconds=None)))


_checker = _Checker()
