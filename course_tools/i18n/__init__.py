"""The Chinese edition: catalogues, and everything that is made from them."""
