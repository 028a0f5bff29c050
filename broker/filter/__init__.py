"""Which messages a consumer wants: tags, the table of SQL92 expressions, its bits."""
