"""The job scheduler: which gang of GPUs each training job gets, and when."""
