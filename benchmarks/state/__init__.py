"""What state costs: ticks over more of it, memory, opening it again."""
