"""Which messages a consumer wants: tags, SQL92 expressions, and bits made ahead for those.

`consumer_filter` keeps the expression of each group and topic; pulls and held pulls ask it. The
language itself is in `protocol/sql92`.
"""
