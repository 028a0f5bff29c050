"""Several broker processes and their name server below one supervisor: `serve --brokers N`.

    plan        which processes there are: names, folders, ports
    supervisor  starts them, starts one again that has ended, stops all
    hang_watch  ends one that hangs
    child       one life of a process, seen by the supervisor
    link        the same, seen by the process: it stops when the supervisor is gone
    pages       metrics and health of all on one port
    merging     several scrapes as one
    banner      what the start prints

The supervisor holds no messages and serves no clients; it never loads a store or a broker. Each
member is an ordinary broker, with its own folder, that an ordinary client finds by the routes.
"""
