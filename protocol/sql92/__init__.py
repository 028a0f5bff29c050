"""The language SQL92 of filters: words, grammar, Java's values, evaluation.

The broker filters by it; a client may read an expression before it goes anywhere.
"""
