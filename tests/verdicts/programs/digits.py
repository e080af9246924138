# Arithmetic on small numbers in one thread.
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


while True:
    for n in range(1, 3000):
        collatz(n)
