"""Support diffusers pipelines, inferring from the source how prompts reach the text encoders."""
