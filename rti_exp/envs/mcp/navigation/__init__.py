"""A small navigation benchmark that runs offline: an MCP server over the town's map, and tasks about it."""
