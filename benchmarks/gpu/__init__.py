"""Everything that is measured on a GPU, in one run on one machine.

    compiled network alone  |  pipeline in process  |  pipeline served by Triton   ->  JSON  ->  docs/performance/h200

The parts are in files of their own: `bundles` (models), `audio` (what they hear), `ceiling`, `inprocess`, `served`,
`accuracy`, `endurance`. What uses the device runs in processes of its own (`tasks`), so that one part leaves nothing
behind for the next.
"""
