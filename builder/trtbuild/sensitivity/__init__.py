"""Which linears lose how much under which scheme, and the cheapest mixture within a budget of bits."""
