"""Records of who appears in generated images, which anyone can check and cite."""
