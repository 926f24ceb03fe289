"""Define the tasks, each of which measures its inputs with and without a method."""
