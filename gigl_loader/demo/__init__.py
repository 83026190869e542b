"""The main job, whole: a real graph, partitioned by the builder, learnt through the loader."""
