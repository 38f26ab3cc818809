// Command prog is a server that runs orders once, built of two releases to serve
// one store. It uses nothing that the first release did not have.
//
//	prog REDIS-ADDRESS NAME LEASE
//
// It prints its own address, and ends with its standard input.
package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotent-go/idempotent"
	"github.com/idempotent-go/idempotent/redisstore"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	name := os.Args[2]
	lease, err := time.ParseDuration(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	guard := idempotent.New(redisstore.New(client), idempotent.WithLease(lease))
	once := guard.Middleware(func(*http.Request) (string, error) { return "alice", nil })
	http.Handle("POST /orders", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if err := client.RPush(r.Context(), "ledger:"+key, name).Err(); err != nil {
			panic(err)
		}
		time.Sleep(100 * time.Millisecond) // others ask meanwhile
		w.Header().Set("Content-Type", "application/json")
		w.Header().Add("X-Order", name)
		w.Header().Add("X-Order", rand.Text())
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "{\"by\":%q,\"number\":%q}\n\x00\xff", name, rand.Text())
	})))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(http.Serve(listener, nil))
}
