"""The topics of this broker: who may make them, their settings, their deletion.

`topic_config` holds the table, which is `topics.json` on the disk. `topic_deletion` takes a topic
out of every table, and then out of the store. Sends, routes and administration ask here.
"""
