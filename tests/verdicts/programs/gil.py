# Six threads that compute.
import threading


def work():
    total = 0
    while True:
        for i in range(1000):
            total += i * i % 7


for _ in range(5):
    threading.Thread(target=work, daemon=True).start()
work()
