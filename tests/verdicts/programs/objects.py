# Many short-lived objects without cycles; the collector is off.
import gc

gc.disable()


class Point:
    __slots__ = ("x", "y", "name")

    def __init__(self, x, y):
        self.x, self.y, self.name = x, y, [x, y]


def work(n):
    return [Point(float(i), (i, i + 1)) for i in range(n)]


while True:
    work(20_000)
