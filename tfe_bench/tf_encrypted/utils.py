"""What tf-encrypted's example programs print with."""


def print_banner(title: str) -> None:
    """Prints a title between two lines."""
    line = "=" * (len(title) + 4)
    print(f"{line}\n= {title} =\n{line}")
