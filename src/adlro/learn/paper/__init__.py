"""The paper's task and its network."""
