# A large graph of objects, and cycles that are dropped all the time: CPython's collector walks the graph again and again.
import gc

gc.set_threshold(200, 2, 2)
graph = [{"name": str(i), "next": [i]} for i in range(300_000)]


class Node:
    def __init__(self):
        self.me = self


while True:
    for _ in range(1000):
        Node()
    gc.collect(1)
    gc.collect(2)
