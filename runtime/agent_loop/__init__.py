"""Agent loops: how one session of one prompt becomes a trajectory."""

from runtime.agent_loop.base import AGENT_LOOPS, AgentLoopBase, AgentLoopOutput, GenerationClient, Session
from runtime.agent_loop.outputs import as_trajectories
from runtime.agent_loop.runner import SessionRunner, Submission

__all__ = [
    "AGENT_LOOPS",
    "AgentLoopBase",
    "AgentLoopOutput",
    "GenerationClient",
    "Session",
    "SessionRunner",
    "Submission",
    "as_trajectories",
]
