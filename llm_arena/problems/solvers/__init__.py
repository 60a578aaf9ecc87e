"""Search and equilibria for the classic games."""
