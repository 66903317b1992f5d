"""What makes outlive the memory of agent frameworks; each adapter needs the extra of its own name."""
