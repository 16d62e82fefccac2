"""Output of tf-encrypted's example programs."""


def print_banner(title: str) -> None:
    """Print a title between two lines."""
    line = "=" * (len(title) + 4)
    print(f"{line}\n= {title} =\n{line}")
