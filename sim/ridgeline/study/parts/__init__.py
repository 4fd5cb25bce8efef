"""Parts of a network with plans and devices of their own, played together."""
