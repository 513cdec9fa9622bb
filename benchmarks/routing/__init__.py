"""Several servers behind nginx and HAProxy: what they carry, what a balancer costs, what happens to live streams."""
