"""Files of nodes and pods: a CSV with a header, or JSON, as traces of clusters are published."""
