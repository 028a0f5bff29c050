"""Which messages a consumer wants: tags and SQL92 expressions.

`consumer_filter` keeps the expression of each group and topic; pulls and held pulls ask it. The
language itself is in `protocol/sql92`.
"""
