"""Starting, watching and stopping a tritonserver."""
