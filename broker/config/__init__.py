"""The broker's configuration: RocketMQ's keys, where their values come from, changes at run time.

`settings` names the keys, `config_file` reads them from file, environment and command line,
`live_config` answers 25 and 26. No other code reads a file or a variable for its settings.
"""
