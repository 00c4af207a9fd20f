"""From files on disk to the types of aorta.artefacts; a broken file costs that file only."""
