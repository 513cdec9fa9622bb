"""How many replicas a load needs: from measurements to replicas, cores, GPUs and cost, and a day of autoscaling."""
