"""`vldebias demo`: images from the same noise without and with a mitigation, and a search and a
classification before and after."""
