"""Traffic forecasting by a diffusion convolutional recurrent neural network."""
