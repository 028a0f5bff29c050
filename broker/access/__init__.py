"""Access control: who may ask for what.

`rights.py` says what each request code needs, `accounts.py` reads the texts with the accounts,
`files.py` keeps them in step with the disk, `control.py` checks requests.
The router asks before any handler; handlers ask again where only the store knows the resource.
"""
