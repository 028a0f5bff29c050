"""The broker's configuration: RocketMQ's keys, where their values come from.

`settings` names the keys, `config_file` reads them from file, environment and command line. No
other code reads a file or a variable for its settings. Changes at run time:
`tables/live_config.py`.
"""
