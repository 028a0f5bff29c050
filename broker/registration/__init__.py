"""What name servers are told about this broker and its topics.

registration.py   what it says of itself
links.py          to one name server each: what that one knows, and is told next
service.py        to all of them, and what they answer
"""
