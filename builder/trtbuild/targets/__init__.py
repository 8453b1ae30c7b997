"""What is made of a checkpoint so that a server can load it; one module per target, imported on use."""
