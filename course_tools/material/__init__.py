"""How the data that lessons work on was made: the evidence of chapter 11, the GPU recordings."""
