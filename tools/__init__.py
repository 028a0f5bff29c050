"""The command line beside the servers.

`topic`, `group`, `client`, `cluster`, `config` and `acl` administer a running cluster over Admin of
the SDK, `mqadmin` does so in RocketMQ 4.9's spelling; `messages` sends and receives; `store` works
on stopped stores. `connection`, `output`, `running` and `watching` are what they share. Each
prints a table on a terminal and JSON otherwise.
"""
