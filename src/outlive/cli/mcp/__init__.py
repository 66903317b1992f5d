"""A store as tools of the Model Context Protocol: a coding agent reads what another agent did."""
