"""Fast paths of the readers: the same answers as the general readers, thousands of rows at a time.

Each fast path stands behind one function: `kineto_layout.find` for the events of a Kineto text, and
`sqlite_pages.integer_blocks` with `rows_with_text` for the tables of an SQLite file. Tests compare the first
one with the decoder of JSON and the second one with SQLite itself.
"""
