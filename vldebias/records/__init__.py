"""Records of who appears in generated images: counts that others can check, compare and quote."""
