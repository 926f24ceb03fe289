"""Records of who appears in generated images: counts that anyone can check, compare and cite."""
