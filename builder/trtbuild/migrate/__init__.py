"""From a deployment with engines to one for the LLM API: what is taken over, what has no equivalent, what needs a decision."""
