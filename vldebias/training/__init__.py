"""Fine-tuning of image-text models on captions that may be wrong.

The way of the data: settings, pairs, batches, objective, loop; `run` puts them together.
"""
