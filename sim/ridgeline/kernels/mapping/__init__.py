"""Loop nests on a memory hierarchy: mappings, traffic, stalls, and the search for the best one."""
