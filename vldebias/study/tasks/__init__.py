"""Define the tasks: what each measures, on which inputs, with and without a method."""
