"""List the results of many runs on one page that can be sorted, filtered and compared."""
