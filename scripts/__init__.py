"""What starts a training: by DeepSpeed's launcher, under Slurm, over several hosts."""
