"""Records of web archives."""
