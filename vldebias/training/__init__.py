"""Fine-tune image-text models on captions that may be wrong.

The data flow is settings, pairs, batches, objective and loop, which `run` connects.
"""
