"""The parts of the site: each function takes a `Visit`, asks the Admin, and returns a page.

`app` has the table of routes. A page that changes something is named in that table as such; what it
does stands on the page before, for a person to confirm. No page here keeps state.
"""
