"""Division of a training graph over devices, by labels of what each op computes."""
