// Hashes one buffer.
package main

import "crypto/sha256"

func main() {
	buffer := make([]byte, 64<<10)
	for {
		sum := sha256.Sum256(buffer)
		buffer[0] = sum[0]
	}
}
