"""OpenAPI documents as tools: `document` reads one, `source` writes the tool file, `tool` makes its calls."""
