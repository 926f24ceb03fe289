"""Fine-tune image-text models on captions that may be wrong.

Data flow through the modules `settings`, `pairs`, `batches`, `objective` and `loop`, in this order.
`run` connects them.
"""
