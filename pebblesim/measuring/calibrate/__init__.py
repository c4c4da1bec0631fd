"""Measure the card that is here: its bandwidths, its launches, our kernels; and fit the rates of the forecast."""
