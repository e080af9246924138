// A map of pointers that is kept, and garbage beside it, with GOGC=20.
package main

type node struct {
	next *node
	name string
	data [4]*int
}

func main() {
	kept := map[int]*node{}
	for i := 0; i < 400000; i++ {
		kept[i] = &node{name: "kept"}
	}
	for i := 0; ; i++ {
		value := new(int)
		kept[i%400000] = &node{next: nil, name: "new", data: [4]*int{value, new(int), new(int), value}}
	}
}
