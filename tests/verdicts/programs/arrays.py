# A new array of 64 MiB for each request: bytearray zeroes through calloc, pages are new.
while True:
    block = bytearray(64 << 20)
    for at in range(0, len(block), 4096):
        block[at] = 1
    del block
