"""Traffic of the remoting protocol, recorded and replayed: `skylarkmq record` and `replay`.

`recording` is the file's form and what is left out of it, `proxy` stands between clients and a
server, `record` and `replay` are the commands. Nothing here changes what passes, except addresses
in routes, so that clients reach brokers through the proxy, too.
"""
