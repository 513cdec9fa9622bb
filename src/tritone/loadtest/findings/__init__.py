"""What a load test found."""
