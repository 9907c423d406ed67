"""Any MCP server as an environment: its tools, tasks from a JSONL file, reward by a rubric."""

from rti_exp.envs.mcp.environment import Mcp

__all__ = ["Mcp"]
