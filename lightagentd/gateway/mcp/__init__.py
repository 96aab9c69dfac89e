"""`/mcp`: agents as servers of the Model Context Protocol over streamable HTTP."""
