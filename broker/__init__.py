"""The broker daemon: from a request on a connection to the store, and back.

    net         connections and routing       processor   what each request code does
    groups, topics, tables                    state that is kept in JSON files
    delay, timer, transaction, pulling        what happens later than its request
    config, metrics, namesrv, filter

`controller` starts and stops it, `components` puts it together. One event loop owns all state:
nothing here may block it. Bytes of records and files are the store's business.
"""
