"""The cluster for agents: tools of the Model Context Protocol over the SDK's Admin.

`skylarkmq mcp` runs it; the extra `mcp` brings the protocol's library. It works on ours and on
Apache's clusters, and its answers have the keys that the commands print with `-o json`.

    cli        the command                       tools      a function as a tool: name, schema
    reading    tools that only look              changing   tools that change something
    server     calls: dry runs, bounds, audit    call       what one call has
    requests   standard input

It must never change what nobody allowed: a changing tool is there only where `--allow` names it,
and does nothing before a dry run of the same arguments gave a token.
"""
