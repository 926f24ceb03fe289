"""Write the examples of saved files that do not exist yet."""

from tests.formats import write_missing

write_missing()
