"""`vldebias demo`: compare generations, classify, retrieve, inspect, export; offline on the embedded models.

`engine` and the actions (`drawing`, `classify`, `retrieve`, `inspect`, `export`) know nothing of Gradio.
"""
