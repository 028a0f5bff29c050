"""The broker daemon: from a request on a connection to the store, and back.

    base, config, tables                      what the others stand on
    net, access                               connections and routing; who may ask for what
    groups, topics, delay, timer, transaction, pulling, pop    state, and what happens later
    requests, processor, grpc, forwarding     what each request does
    replication, draining, metrics, pages, namesrv, start, fleet

A folder imports only folders below it; `ARCHITECTURE.md` has their order. `controller` starts and
stops the broker, `components` puts it together. One event loop owns all state: nothing here may
block it. Bytes of records and files are the store's business.
"""
