"""A back end around another one: orders are written down, compared and replayed, never carried out."""
