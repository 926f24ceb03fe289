"""Fine-tune image-text models on captions that may be wrong.

Data flows through settings, pairs, batches, objective and loop; `run` connects them.
"""
