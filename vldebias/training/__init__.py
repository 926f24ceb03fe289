"""Fine-tune image-text models on captions that may be wrong.

Data flow through settings, pairs, batches, objective and loop; `run` puts them together.
"""
