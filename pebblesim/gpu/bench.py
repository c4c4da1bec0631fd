"""`python -m pebblesim.gpu.bench`: our kernels beside the attentions that are installed, on this GPU, in a minute."""

from pebblesim.operator.bench import main

if __name__ == "__main__":
    main()
