"""What a command or a function of the public interface does, from arguments to a result."""
