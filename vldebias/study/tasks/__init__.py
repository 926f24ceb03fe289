"""Tasks, each of which measures some inputs with and without a method."""
