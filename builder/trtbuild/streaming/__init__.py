"""Running a model of which one decoder layer is in memory at a time; layers are independent of one another given their inputs."""
