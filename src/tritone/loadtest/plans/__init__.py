"""What is measured, and at which loads: plans, ramps, sweeps over ways to serve, input files of perf_analyzer."""
