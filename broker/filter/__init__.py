"""Which messages a consumer wants: tags, SQL92 expressions, and the table of the latter."""
