"""Place training jobs by how much they suffer from a slow network."""
