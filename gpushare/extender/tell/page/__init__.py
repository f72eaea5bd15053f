"""The page that shows the cluster to people: its listener, its files and the document it reads.

Read only. Nothing of it is there unless --ui-listen is given.
"""
