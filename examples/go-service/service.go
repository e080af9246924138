// A basket service: it keeps the last 2,000 baskets, and each request makes a new one of 200 small objects. All of them are on Go's heap, so
// `allocwall diagnose` should show the garbage collector on a line of its own.
//
//	go build -o /tmp/service service.go
//	/tmp/service -port 8082
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
)

const (
	kept  = 2_000
	items = 200
)

type item struct {
	name  string
	price int
	tags  map[string]int
}

var (
	lock    sync.Mutex
	baskets [kept][]*item
	next    int
)

func basket(number int) []*item {
	made := make([]*item, 0, items)
	for i := range items {
		name := fmt.Sprintf("item %d of basket %d", i, number)
		made = append(made, &item{name, i * number % 997, map[string]int{name: i}})
	}
	return made
}

func answer(response http.ResponseWriter, _ *http.Request) {
	lock.Lock()
	number := next
	next++
	lock.Unlock()
	made := basket(number)
	total := 0
	for _, one := range made {
		total += one.price + one.tags[one.name]
	}
	lock.Lock()
	baskets[number%kept] = made
	lock.Unlock()
	fmt.Fprintf(response, "basket %d: %d\n", number, total)
}

func main() {
	port := flag.Int("port", 0, "port on 127.0.0.1; 0: a free one, printed")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on %s, pid %d\n", listener.Addr(), os.Getpid())
	log.Fatal(http.Serve(listener, http.HandlerFunc(answer)))
}
