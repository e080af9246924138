//! Built-in subjects: programs with one known wall, a dial for its share, and their own account of the truth.
