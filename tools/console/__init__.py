"""The console: a cluster as web pages, on the SDK's Admin alone, for ours and Apache's brokers.

`skylarkmq console` runs it; the extra `console` brings its libraries. A page is rendered here, on
the server; scripts, styles and pictures come from `static/`, and nothing from anywhere else.

    cli        the command                    app        routes, and what lives as long as it
    server     sockets and uvicorn            guard      Host, Origin, headers of every answer
    sessions   who is logged in               access     a cluster as one account sees it
    visit      one request: form, page, error history    lag and rates over time, in memory
    text       numbers and times for people   chart      lines as SVG
    bodies     what a message's body shows    waiting    delayed messages, open transactions
    change     asks, does and notes a change  sorting    the order of a table's rows
    gone       who was there before       pages/     a file for each part of the site

It must never do what a page does not say: reading changes nothing, and what changes something is a
POST with the session's token that was asked for and confirmed. A console that was not started with
`--write` has no such route.
"""
