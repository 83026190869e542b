"""Steps of a build: ids, nodes, edges, splits, quantised columns, indexes of weights and times."""
