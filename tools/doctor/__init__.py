"""The command `skylarkmq doctor`: what is wrong with a cluster, as seen from this machine.

`checks` asks the cluster through the SDK's Admin, `cli` prints the findings. Nothing here changes
anything.
"""
