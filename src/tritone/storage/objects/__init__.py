"""What several stores share: those of objects, which obstore reads and writes."""
