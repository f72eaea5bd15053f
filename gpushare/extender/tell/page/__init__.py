"""The page that shows the cluster to people: the listener, the files and the document.

Read only. Without --ui-listen there is no page.
"""
