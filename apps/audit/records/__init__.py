"""Store who appears in a model's images, in records that anyone can check and cite."""
