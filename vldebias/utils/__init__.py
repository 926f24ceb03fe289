"""Provide what every package needs: files, tables of text, names, options, progress."""
