"""What each request code does: a module for each family of codes.

`net/router` hands a request to the handler of its code; `broker/requests/` has what the handlers
share, `broker/components` the table of all. A handler checks, calls store or tables,
and answers with RocketMQ's codes and remarks. State that outlives a request lies in the folders
beside this one.
"""
