"""The command `skylarkmq doctor`: what is wrong with a cluster, as seen from this machine.

`checks` asks the cluster through the SDK's Admin, `limits` reads the limits of this machine's
processes, `cli` prints the findings. Nothing here changes anything.
"""
